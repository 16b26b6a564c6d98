"""Real clients against a running server: BASE is its address with /v1, MODEL the model's name."""

import asyncio
import json
import os
import subprocess
import tempfile

# It would otherwise ask for a list of prices.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import litellm
import openai
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

BASE, MODEL = os.environ["BASE"], os.environ["MODEL"]
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 40}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
client = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0)


class Answer(BaseModel):
    city: str
    country: str


def openai_sync():
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=20)
    assert "Paris" in answer.choices[0].message.content, answer
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    two = client.chat.completions.create(model=MODEL, messages=QUESTION, n=2, seed=1, max_tokens=5)
    assert [choice.index for choice in two.choices] == [0, 1]
    logprobs = client.chat.completions.create(
        model=MODEL, messages=QUESTION, logprobs=True, top_logprobs=2, max_tokens=3, temperature=0
    )
    assert len(logprobs.choices[0].logprobs.content[0].top_logprobs) == 2
    text = client.completions.create(model=MODEL, prompt="def add(a, b):", max_tokens=8, temperature=0)
    assert text.choices[0].text.strip(), text
    assert MODEL in [model.id for model in client.models.list()]


def openai_streaming():
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=20, stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "Paris" in "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert chunks[-1].usage.completion_tokens > 0
    with client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True) as stream:
        next(iter(stream))  # and leave


async def openai_async():
    many = openai.AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0)
    request = dict(model=MODEL, messages=QUESTION, temperature=0, max_tokens=20)
    answers = await asyncio.gather(*(many.chat.completions.create(**request) for _ in range(4)))
    texts = {answer.choices[0].message.content for answer in answers}
    assert len(texts) == 1, texts
    text = ""
    async for chunk in await many.chat.completions.create(**request, stream=True):
        text += chunk.choices[0].delta.content or ""
    assert {text} == texts


def openai_tools():
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    request = dict(model=MODEL, messages=messages, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=100)
    answer = client.chat.completions.create(**request)
    (call,) = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"], call
    name, arguments = "", ""
    for chunk in client.chat.completions.create(**request, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            name += delta.function.name or ""
            arguments += delta.function.arguments or ""
    assert (name, json.loads(arguments)) == ("get_weather", json.loads(call.function.arguments))
    messages += [
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."},
    ]
    last = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], temperature=0, max_tokens=60)
    assert last.choices[0].message.content or last.choices[0].message.tool_calls, last
    named = {"type": "function", "function": {"name": "get_weather"}}
    forced = client.chat.completions.create(**{**request, "tool_choice": named})
    assert forced.choices[0].message.tool_calls[0].function.name == "get_weather"


def openai_structured():
    answer = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=Answer, temperature=0, max_tokens=100
    )
    assert answer.choices[0].message.parsed.city, answer
    loose = client.chat.completions.create(
        model=MODEL, temperature=0, max_tokens=100, response_format={"type": "json_object"},
        messages=[{"role": "user", "content": "The capital of France as JSON with one field."}],
    )
    assert isinstance(json.loads(loose.choices[0].message.content), dict), loose


def openai_embeddings():
    texts = ["The cat sleeps on the sofa.", "A kitten is napping on the couch.", "Interest rates rose again."]
    # The package asks for base64 unless it is told otherwise.
    found = client.embeddings.create(model=MODEL, input=texts)
    vectors = [item.embedding for item in found.data]
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert all(abs(dot(vector, vector) - 1) < 1e-4 for vector in vectors)
    assert dot(vectors[0], vectors[1]) > dot(vectors[0], vectors[2]), "what means the same is not near"
    plain = client.embeddings.create(model=MODEL, input=texts[0], encoding_format="float", dimensions=64)
    assert len(plain.data[0].embedding) == 64 and plain.usage.prompt_tokens > 0
    assert len(litellm.embedding(model=f"openai/{MODEL}", input=texts, api_base=BASE, api_key="none").data) == 3
    assert len(OpenAIEmbeddings(base_url=BASE, api_key="none", model=MODEL, check_embedding_ctx_length=False).embed_query("a")) == len(vectors[0])


def openai_responses():
    request = dict(model=MODEL, temperature=0, max_output_tokens=60)
    question = QUESTION[0]["content"]
    first = client.responses.create(**request, input=question, instructions="Be brief.")
    assert "Paris" in first.output_text and first.status == "completed", first
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens
    second = client.responses.create(**request, input="Say that again.", previous_response_id=first.id)
    assert second.output_text and second.previous_response_id == first.id, second
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    text, kinds = "", []
    for event in client.responses.create(**request, input=QUESTION, stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
    assert "Paris" in text and (kinds[0], kinds[-1]) == ("response.created", "response.completed"), kinds
    with client.responses.stream(**request, input=QUESTION) as stream:
        assert stream.get_final_response().output_text == text
    parsed = client.responses.parse(**request, input=QUESTION, text_format=Answer)
    assert parsed.output_parsed.city, parsed
    tools = [{"type": "function", **TOOL["function"]}]
    items = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked = client.responses.create(**request, input=items, tools=tools, tool_choice="required")
    (call,) = [item for item in asked.output if item.type == "function_call"]
    assert call.name == "get_weather" and json.loads(call.arguments)["city"], call
    items += [call, {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 21 degrees."}]
    told = client.responses.create(**request, input=items, tools=tools)
    assert told.output, told
    for kind, change in [(openai.BadRequestError, {"input": []}), (openai.NotFoundError, {"model": "gpt-4o"})]:
        try:
            client.responses.create(**{**request, "input": question, **change})
        except kind as error:
            assert error.body["message"], error
        else:
            raise AssertionError(f"{change} was not refused")


async def openai_responses_async():
    many = openai.AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0)
    request = dict(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=20)
    answers = await asyncio.gather(*(many.responses.create(**request) for _ in range(4)))
    text = ""
    async for event in await many.responses.create(**request, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
    assert {answer.output_text for answer in answers} == {text}, answers


def openai_errors():
    for kind, change in [
        (openai.BadRequestError, {"temperature": 9}),
        (openai.NotFoundError, {"model": "gpt-4o"}),
        (openai.BadRequestError, {"messages": [{"role": "user", "content": "x " * 50_000}]}),
    ]:
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, **change})
        except kind as error:
            assert error.body["message"], error
        else:
            raise AssertionError(f"{change} was not refused")


def with_litellm():
    request = dict(model=f"openai/{MODEL}", api_base=BASE, api_key="none", messages=QUESTION, temperature=0, max_tokens=20)
    assert "Paris" in litellm.completion(**request).choices[0].message.content
    chunks = litellm.completion(**request, stream=True)
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def with_langchain():
    model = ChatOpenAI(base_url=BASE, api_key="none", model=MODEL, temperature=0, max_tokens=100)
    assert "Paris" in model.invoke(QUESTION[0]["content"]).content
    assert "Paris" in "".join(chunk.content for chunk in model.stream(QUESTION[0]["content"]))
    assert model.with_structured_output(Answer).invoke(QUESTION[0]["content"]).city

    @tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return "Sunny"

    (call,) = model.bind_tools([get_weather], tool_choice="get_weather").invoke("The weather in Paris?").tool_calls
    assert call["name"] == "get_weather" and call["args"]["city"], call


def with_llm():
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/extra-openai-models.yaml", "w") as file:
            file.write(f"- model_id: here\n  model_name: {MODEL}\n  api_base: {BASE}\n")
        environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}
        command = ["llm", "-m", "here", "-o", "temperature", "0", "-o", "max_tokens", "20", QUESTION[0]["content"]]
        for more in ([], ["--no-stream"]):
            done = subprocess.run(command + more, env=environment, capture_output=True, text=True, timeout=120)
            assert "Paris" in done.stdout, done


for check in [
    openai_sync, openai_streaming, openai_tools, openai_structured, openai_embeddings, openai_responses, openai_errors,
    with_litellm, with_langchain, with_llm,
]:
    check()
    print("ok", check.__name__, flush=True)
for check in [openai_async, openai_responses_async]:
    asyncio.run(check())
    print("ok", check.__name__, flush=True)
