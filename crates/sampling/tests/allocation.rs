//! After the first token, a sampler allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use sampling::{Sampler, SamplerParams};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // The thread may be past the end of its thread-locals; such an allocation is not ours to count.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call is passed on to the system allocator unchanged; counting touches only a
// thread-local integer that needs neither allocation nor destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those of System.alloc.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: ptr came from System.alloc or System.realloc with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as for dealloc; the caller promises a valid new size.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

#[test]
fn no_allocation_after_the_first_token() {
    let row: Vec<f32> = (0..32_000).map(|i| ((i * 7919) % 4999) as f32 / 300.0).collect();
    let base = || SamplerParams { seed: Some(1), ..SamplerParams::default() };
    for params in [
        base(),
        SamplerParams { repeat_penalty: 1.1, logit_bias: vec![(5, 2.0)], ..base() },
        SamplerParams { top_k: 0, top_p: 0.9, ..base() },
        SamplerParams { top_k: 0, typical_p: 0.9, ..base() },
        SamplerParams { seed: Some(1), ..SamplerParams::unmodified() },
        SamplerParams::greedy(),
    ] {
        let mut sampler = Sampler::new(params.clone()).unwrap();
        let mut next = || {
            let id = sampler.sample(&row).unwrap().id;
            sampler.accept(id);
        };
        next();
        let before = ALLOCATIONS.get();
        (0..300).for_each(|_| next());
        assert_eq!(ALLOCATIONS.get() - before, 0, "{params:?}");
    }
    // The counter itself works.
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![0u8; 100]));
    assert_eq!(ALLOCATIONS.get() - before, 1);
}
