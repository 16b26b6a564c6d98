constant [[function_constant(0)]];
constant int [[function_constant(1)]];
constant int a [[function_constant()]];
constant int b [[function_constant(b)]];
