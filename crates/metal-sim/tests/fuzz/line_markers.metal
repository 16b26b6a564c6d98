# 4294967295 "far.metal" 1 2 3 4
# 99999999999999999999 "further.metal"
# "nowhere"
#
# 0 ""
kernel void k(texture2d<float> t [[texture(0)]]) {}
# 7 "unfinished
