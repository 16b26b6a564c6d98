// Instructions of compute capability 9.0: barriers in shared memory, bulk copies, and products of a warpgroup.
#pragma once
#include "common.cuh"

__device__ __forceinline__ void barrier_init(u64 *barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
// After barriers were made, before bulk copies use them.
__device__ __forceinline__ void barriers_visible() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and lets the phase wait for this many bytes too.
__device__ __forceinline__ void barrier_expect(u64 *barrier, u32 bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Waits for the end of the phase of this parity.
__device__ __forceinline__ void barrier_wait(u64 *barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
// Copies a run of bytes, a multiple of 16, which the barrier counts as they come.
__device__ __forceinline__ void bulk_copy(void *to, const void *from, u32 bytes, u64 *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
// A barrier of some of a block's threads; number 0 is that of `__syncthreads`.
__device__ __forceinline__ void named_barrier(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

template <int REGISTERS> __device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Before products read registers that were written since the last ones.
__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most N groups are under way.
template <int N> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// What describes a matrix of halves in shared memory: rows of 128 bytes, whose 16-byte pieces are swapped by the lowest
// three bits of the row's number. It begins at a multiple of 1024 bytes, plus the columns that were passed.
__device__ __forceinline__ u64 swizzled_matrix(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// c += a b: 64 rows of `a` from the registers of four warps, N columns of `b` from shared memory, 16 deep.
template <int N> struct Product;

#define LIST_4 "%0,%1,%2,%3"
#define LIST_8 LIST_4 ",%4,%5,%6,%7"
#define LIST_16 LIST_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define LIST_32 LIST_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LIST_64                                                                                                       \
    LIST_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"    \
            "%57,%58,%59,%60,%61,%62,%63"
#define OUT_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define OUT_8(i) OUT_4(i), OUT_4(i + 4)
#define OUT_16(i) OUT_8(i), OUT_8(i + 8)
#define OUT_32(i) OUT_16(i), OUT_16(i + 16)
#define OUT_64(i) OUT_32(i), OUT_32(i + 32)
// N columns are N / 2 results in each thread; the operands behind them have these numbers.
#define PRODUCT(N, COUNT, A, B)                                                                                       \
    template <> struct Product<N> {                                                                                   \
        static __device__ __forceinline__ void add(float *c, const u32 *a, u64 b) {                                   \
            asm volatile("{\n.reg .pred sum;\nsetp.eq.u32 sum, 0, 0;\n"                                               \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" LIST_##COUNT "}, {" A "}, " B     \
                         ", sum, 1, 1, 0;\n}\n"                                                                       \
                         : OUT_##COUNT(0)                                                                             \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                       \
        }                                                                                                             \
    };
PRODUCT(8, 4, "%4,%5,%6,%7", "%8")
PRODUCT(16, 8, "%8,%9,%10,%11", "%12")
PRODUCT(32, 16, "%16,%17,%18,%19", "%20")
PRODUCT(64, 32, "%32,%33,%34,%35", "%36")
PRODUCT(128, 64, "%64,%65,%66,%67", "%68")

// c = a b or c += a b, 64 columns, with `a` from shared memory too.
__device__ __forceinline__ void product_of_shared(float *c, u64 a, u64 b, bool adds) {
    asm volatile("{\n.reg .pred sum;\nsetp.ne.u32 sum, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" LIST_32 "}, %32, %33, sum, 1, 1, 0, 0;\n}\n"
                 : OUT_32(0)
                 : "l"(a), "l"(b), "r"((u32)adds));
}
// c += a b, 64 columns, where the rows of `b` in shared memory are those of the depth.
__device__ __forceinline__ void product_of_rows(float *c, const u32 *a, u64 b) {
    asm volatile("{\n.reg .pred sum;\nsetp.eq.u32 sum, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" LIST_32 "}, {%32,%33,%34,%35}, %36, sum, 1, 1, 1;\n}\n"
                 : OUT_32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// What ordinary stores wrote to shared memory is there for products, after a barrier.
__device__ __forceinline__ void stores_visible() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
