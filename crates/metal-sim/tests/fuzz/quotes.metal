kernel void k() { char a = '"'; char b = '\''; const constant char* c = "\"[[buffer(0)]]\\"; }
"