template [[host_name("k_float)]] kernel void k<float>(device float*);
