// <metal_simdgroup_matrix>: 8x8 matrices spread over a SIMD-group, two elements a lane.
//
// A product needs the elements of all 32 lanes, so computing it at once would cost a synchronisation. Lanes
// queue their operands instead, and the queue is worked off at the next synchronisation of the SIMD-group or
// when a result is looked at. A queued operand is a tile: the 8x8 values that the lanes have written together.
// A matrix object remembers its tile, so that an operand of several products is written once, and an
// accumulator stays a tile until someone reads its elements.
#pragma once
#pragma clang system_header
#include "matrix_layout.h"
#include "simdgroup.h"

namespace metal_sim {
METAL_SIM_UNCHECKED_BEGIN

enum MatrixElement : uint8_t { element_float, element_half, element_bfloat };
template <class T> constexpr MatrixElement matrix_element =
    is_same_v<T, half> ? element_half : is_same_v<T, bfloat> ? element_bfloat : element_float;

// What the queue knows about a matrix object; the two elements follow.
struct MatrixState {
  uint32_t generation;   // of the queue, when `tile` is valid
  uint16_t tile;
  bool pending;          // the elements are stale: the value is in the tile, to be computed
  bool exposed;          // someone may hold a reference to the elements
};
struct MatrixOperation {
  uint8_t left, right, target;
  MatrixElement element;   // of the target
  bool is_copy;            // target = left
};
struct MatrixQueue {
  uint32_t generation;
  uint32_t tile_count;
  MatrixElement elements[matrix_tile_limit];
  MatrixOperation operations[matrix_operation_limit];
  alignas(64) float tiles[matrix_tile_limit][64];
  MatrixState* results[matrix_tile_limit][simd_width];   // objects to receive a tile's value
  bool has_results[matrix_tile_limit];
};

// The index of the running lane, which is the same wherever it asks.
__attribute__((const)) METAL_SIM_OUTLINE uint32_t lane_index() { return current_lane()->lane; }

template <class T> METAL_SIM_INLINE void scatter(MatrixState** results, const float* tile) {
  for (uint32_t lane = 0; lane < simd_width; lane++) {
    MatrixState* state = results[lane];
    if (!state) continue;
    const float* from = tile + matrix_row(lane) * 8 + matrix_column(lane);
    T* elements = reinterpret_cast<T*>(state + 1);
    elements[0] = T(from[0]);
    elements[1] = T(from[1]);
    state->pending = false;
    results[lane] = nullptr;
  }
}
template <class T> METAL_SIM_INLINE void round_tile(float* tile) {
  for (int i = 0; i < 64; i++) tile[i] = float(T(tile[i]));
}

// Works off the queue. Lanes that have queued different numbers of operations are not ready yet.
__attribute__((noinline, no_sanitize("all"))) static void flush_matrix_queue(SimdGroup* group) {
  MatrixQueue* queue = group->matrix_queue;
  uint32_t count = group->lanes[0].matrix_operations;
  for (uint32_t rest = group->members; rest; rest &= rest - 1)
    if (group->lanes[__builtin_ctz(rest)].matrix_operations != count) return;
  if (count) {
    typedef float Row __attribute__((ext_vector_type(8)));
    for (uint32_t i = 0; i < count; i++) {
      const MatrixOperation& operation = queue->operations[i];
      float* target = queue->tiles[operation.target];
      const float* left = queue->tiles[operation.left];
      if (operation.is_copy) {
        __builtin_memcpy(target, left, sizeof queue->tiles[0]);
      } else {
        const Row* right = reinterpret_cast<const Row*>(queue->tiles[operation.right]);
        Row sums[8];
        for (int row = 0; row < 8; row++) sums[row] = reinterpret_cast<const Row*>(target)[row];
        for (int k = 0; k < 8; k++)
          for (int row = 0; row < 8; row++) sums[row] += left[row * 8 + k] * right[k];
        for (int row = 0; row < 8; row++) reinterpret_cast<Row*>(target)[row] = sums[row];
      }
      if (operation.element == element_half) round_tile<half>(target);
      else if (operation.element == element_bfloat) round_tile<bfloat>(target);
    }
  }
  uint32_t tiles = 0;
  for (uint32_t rest = group->members; rest; rest &= rest - 1) {
    Lane& lane = group->lanes[__builtin_ctz(rest)];
    if (lane.matrix_tiles > tiles) tiles = lane.matrix_tiles;
    lane.matrix_tiles = lane.matrix_operations = 0;
  }
  for (uint32_t tile = 0; tile < tiles; tile++) {
    if (!queue->has_results[tile]) continue;
    queue->has_results[tile] = false;
    if (queue->elements[tile] == element_half) scatter<half>(queue->results[tile], queue->tiles[tile]);
    else if (queue->elements[tile] == element_bfloat) scatter<bfloat>(queue->results[tile], queue->tiles[tile]);
    else scatter<float>(queue->results[tile], queue->tiles[tile]);
  }
  queue->generation++;
  group->matrix_flush = nullptr;
}

METAL_SIM_UNCHECKED_END
}  // namespace metal_sim

namespace metal {
template <class T, int Columns, int Rows> struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "simdgroup_matrix is 8x8");
  static_assert(is_floating_point_v<T>, "simdgroup_matrix holds half, bfloat or float");
  metal_sim::MatrixState state;
  T elements[2];

  METAL_SIM_INLINE simdgroup_matrix() : state{0, 0, false, false} {}
  // A diagonal matrix.
  explicit METAL_SIM_INLINE simdgroup_matrix(T diagonal) : simdgroup_matrix() {
    uint32_t lane = metal_sim::lane_index(), row = metal_sim::matrix_row(lane), column = metal_sim::matrix_column(lane);
    elements[0] = row == column ? diagonal : T(0);
    elements[1] = row == column + 1 ? diagonal : T(0);
  }
  METAL_SIM_INLINE simdgroup_matrix(const simdgroup_matrix& other) : simdgroup_matrix() { assign(other); }
  METAL_SIM_INLINE simdgroup_matrix& operator=(const simdgroup_matrix& other) {
    if (this != &other) { forget(); assign(other); }
    return *this;
  }
  METAL_SIM_INLINE ~simdgroup_matrix() { forget(); }

  // The two elements of this lane.
  METAL_SIM_OUTLINE vec<T, 2>& thread_elements(METAL_SIM_SITE) {
    settle(site);
    state.exposed = true;
    state.generation = 0;
    return *reinterpret_cast<vec<T, 2>*>(elements);
  }
  METAL_SIM_OUTLINE const vec<T, 2>& thread_elements(METAL_SIM_SITE) const {
    settle(site);
    return *reinterpret_cast<const vec<T, 2>*>(elements);
  }

  // Makes the elements valid.
  METAL_SIM_OUTLINE void settle(uint32_t site) const {
    if (!state.pending) return;
    metal_sim::synchronise_simdgroup(site);
    if (__builtin_expect(*const_cast<const volatile bool*>(&state.pending), 0))
      metal_sim::runtime->fail(metal_sim::current_lane(), "a simdgroup_matrix operation was not executed by all threads of its SIMD-group");
  }
  // Drops a value that is still to come: the object dies or gets another value.
  METAL_SIM_OUTLINE void forget() {
    if (__builtin_expect(state.pending, 0)) {
      metal_sim::Lane* lane = metal_sim::current_lane();
      lane->simdgroup->matrix_queue->results[state.tile][lane->lane] = nullptr;
      state.pending = false;
    }
    state.generation = 0;
  }
  METAL_SIM_OUTLINE void set(T first, T second) {
    forget();
    elements[0] = first;
    elements[1] = second;
  }

 private:
  METAL_SIM_OUTLINE void assign(const simdgroup_matrix& other);
};
}  // namespace metal

namespace metal_sim {
METAL_SIM_UNCHECKED_BEGIN
using metal::simdgroup_matrix;

// One lane's view of the queue while it adds an operation.
struct MatrixQueueEntry {
  Lane* lane;
  SimdGroup* group;
  MatrixQueue* queue;

  // Opens the queue with room for two operations and three tiles.
  METAL_SIM_INLINE MatrixQueueEntry(uint32_t site) : lane(current_lane()), group(lane->simdgroup), queue(group->matrix_queue) {
    if (__builtin_expect(lane->matrix_tiles + 3 > matrix_tile_limit || lane->matrix_operations + 2 > matrix_operation_limit, 0)) {
      synchronise_simdgroup(site);
      if (lane->matrix_operations)
        runtime->fail(lane, "simdgroup_matrix operations were not executed by all threads of their SIMD-group");
    }
    if (!group->matrix_flush) {
      group->matrix_flush = &flush_matrix_queue;
      if (!queue->generation) queue->generation = 1;
    }
  }
  template <class T> METAL_SIM_INLINE uint32_t new_tile(const T* elements) {
    uint32_t tile = lane->matrix_tiles++;
    float* to = queue->tiles[tile] + matrix_row(lane->lane) * 8 + matrix_column(lane->lane);
    to[0] = convert<float>(elements[0]);
    to[1] = convert<float>(elements[1]);
    return tile;
  }
  // The tile that holds the matrix, made if there is none.
  template <class T> METAL_SIM_INLINE uint32_t tile_of(const simdgroup_matrix<T, 8, 8>& matrix) {
    MatrixState& state = const_cast<MatrixState&>(matrix.state);
    if (state.generation == queue->generation && (!state.exposed || state.pending)) return state.tile;
    uint32_t tile = new_tile(matrix.elements);
    state.generation = queue->generation;
    state.tile = uint16_t(tile);
    return tile;
  }
  // Makes the matrix receive the value of the tile.
  template <class T> METAL_SIM_INLINE void promise(simdgroup_matrix<T, 8, 8>& matrix, uint32_t tile) {
    if (matrix.state.pending && matrix.state.tile == tile) return;
    matrix.forget();
    queue->elements[tile] = matrix_element<T>;
    queue->has_results[tile] = true;
    queue->results[tile][lane->lane] = &matrix.state;
    matrix.state.generation = queue->generation;
    matrix.state.tile = uint16_t(tile);
    matrix.state.pending = true;
  }
  METAL_SIM_INLINE void add(MatrixOperation operation) { queue->operations[lane->matrix_operations++] = operation; }
};
METAL_SIM_UNCHECKED_END
}  // namespace metal_sim

namespace metal {
template <class T, int C, int R> METAL_SIM_OUTLINE void simdgroup_matrix<T, C, R>::assign(const simdgroup_matrix& other) {
  if (__builtin_expect(!other.state.pending, 1)) {
    elements[0] = other.elements[0];
    elements[1] = other.elements[1];
    return;
  }
  metal_sim::MatrixQueueEntry entry(__builtin_LINE() * 256u);
  if (!other.state.pending) {   // opening the queue worked it off
    elements[0] = other.elements[0];
    elements[1] = other.elements[1];
    return;
  }
  uint32_t tile = entry.new_tile(other.elements);
  entry.add({uint8_t(other.state.tile), 0, uint8_t(tile), metal_sim::matrix_element<T>, true});
  entry.promise(*this, tile);
}

template <class D, class A, class B, class C>
METAL_SIM_OUTLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                                    const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c, METAL_SIM_SITE) {
  metal_sim::MatrixQueueEntry entry(site);
  uint32_t left = entry.tile_of(a), right = entry.tile_of(b), target;
  if ((const void*)&c == (const void*)&d && &c.state != &a.state && &c.state != &b.state) {
    target = entry.tile_of(d);
  } else if (c.state.pending) {
    // The start value is itself still to come: one more operation copies it.
    target = entry.new_tile(c.elements);
    entry.add({uint8_t(c.state.tile), 0, uint8_t(target), metal_sim::matrix_element<D>, true});
  } else {
    target = entry.new_tile(c.elements);
  }
  entry.add({uint8_t(left), uint8_t(right), uint8_t(target), metal_sim::matrix_element<D>, false});
  entry.promise(d, target);
  if (d.state.exposed) d.settle(site);
}
}  // namespace metal
#include "matrix_functions.h"
