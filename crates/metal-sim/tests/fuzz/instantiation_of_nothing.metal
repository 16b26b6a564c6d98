template [[host_name("")]] kernel void <>();
template [[host_name("a")]] kernel;
template [[host_name("b")]] kernel void k;
template [[host_name("c")]] [[kernel]] decltype(k<1 < 2>) k<(1 > 2)>;
