/* Stands for libcuda, libnvrtc and libnccl in `libraries.rs`, which leaves lines out: a function a line. Each returns 0, or what FAKE_RESULTS
   has for it: ",name=number,...". */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int number(const char *all, const char *name, int otherwise) {
    char key[96] = ",";
    strncat(strncat(key, name, 90), "=", 2);
    const char *at = all ? strstr(all, key) : 0;
    return at ? atoi(at + strlen(key)) : otherwise;
}
static int result(const char *name) { return number(getenv("FAKE_RESULTS"), name, 0); }
static int value(const char *name, int otherwise) { return number(getenv("FAKE_VALUES"), name, otherwise); }
#define NOTHING(name) int name(void) { return result(#name); }
#define HANDLE(name) int name(void **handle) { return *handle = malloc(8), result(#name); }

int cuDriverGetVersion(int *version) { return *version = value("version", 13000), result("cuDriverGetVersion"); }
int cuDeviceGetCount(int *count) { return *count = value("devices", 1), result("cuDeviceGetCount"); }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, result("cuDeviceGet"); }
int cuDeviceGetName(char *name, int room, int device) { return strncpy(name, "a fake GPU", room), result("cuDeviceGetName"); }
int cuDeviceGetAttribute(int *is, int which, int device) { return *is = which == 75 ? value("capability", 9) : which == 76 ? 0 : which == 16 ? 132 : 232448, result("cuDeviceGetAttribute"); }
int cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = *total = (size_t)4 << 30, result("cuMemGetInfo_v2"); }
int cuMemAlloc_v2(unsigned long long *address, size_t bytes) { return *address = 4096, result("cuMemAlloc_v2"); }
int cuMemHostAlloc(void **base, size_t bytes, unsigned flags) { return posix_memalign(base, 4096, bytes), result("cuMemHostAlloc"); }
int cuMemHostGetDevicePointer_v2(unsigned long long *address, void *base, unsigned flags) { return *address = (size_t)base, result("cuMemHostGetDevicePointer_v2"); }
int cuMemFreeHost(void *base) { return free(base), result("cuMemFreeHost"); }
int cuGetErrorString(int error, const char **text) { return *text = error == 2 ? "out of memory" : error == 100 ? "no CUDA-capable device is detected" : error == 719 ? "unspecified launch failure" : 0, *text ? 0 : 1; }
int nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = 0, result("nvrtcVersion"); }
HANDLE(cuDevicePrimaryCtxRetain)
HANDLE(cuStreamCreate)
HANDLE(cuEventCreate)
NOTHING(cuInit)
NOTHING(cuCtxEnablePeerAccess)
NOTHING(cuCtxSetCurrent)
NOTHING(cuDeviceCanAccessPeer)
NOTHING(cuDevicePrimaryCtxRelease_v2)
NOTHING(cuEventDestroy_v2)
NOTHING(cuEventQuery)
NOTHING(cuEventRecord)
NOTHING(cuFuncGetAttribute)
NOTHING(cuFuncSetAttribute)
NOTHING(cuGraphDestroy)
NOTHING(cuGraphExecDestroy)
NOTHING(cuGraphInstantiateWithFlags)
NOTHING(cuGraphLaunch)
NOTHING(cuLaunchKernelEx)
NOTHING(cuMemFree_v2)
NOTHING(cuMemcpyDtoHAsync_v2)
NOTHING(cuMemcpyHtoDAsync_v2)
NOTHING(cuMemcpyPeerAsync)
NOTHING(cuMemsetD8Async)
NOTHING(cuModuleGetFunction)
NOTHING(cuModuleLoadData)
NOTHING(cuModuleUnload)
NOTHING(cuStreamBeginCapture_v2)
NOTHING(cuStreamDestroy_v2)
NOTHING(cuStreamEndCapture)
NOTHING(cuStreamQuery)
NOTHING(cuStreamWaitEvent)
/* A group's first exchange, and the call before it, return when it is ended, or never, if they are to be stuck. */
static volatile int is_ended;
int ncclGetVersion(int *version) { return *version = 22800, 0; }
const char *ncclGetErrorString(int error) { return "unhandled system error"; }
int ncclCommInitAll(void **handles, int count, int *devices) { while (value("stuck_init", 0)) usleep(1000); while (count-- > 0) handles[count] = malloc(8); return result("ncclCommInitAll"); }
int ncclAllReduce(void) { while (value("stuck", 0) && !is_ended) usleep(1000); return is_ended ? 2 : result("ncclAllReduce"); }
int ncclCommAbort(void *handle) { return free(handle), is_ended = 1, 0; }
NOTHING(ncclAllGather)
NOTHING(nvrtcCompileProgram)
NOTHING(nvrtcCreateProgram)
NOTHING(nvrtcDestroyProgram)
NOTHING(nvrtcGetCUBIN)
NOTHING(nvrtcGetCUBINSize)
NOTHING(nvrtcGetProgramLog)
NOTHING(nvrtcGetProgramLogSize)
