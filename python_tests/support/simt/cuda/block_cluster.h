// Replaces csrc/cuda/block_cluster.h: the same functions on the CPU. Blocks of a cluster run together.
#pragma once

#include <cuda_runtime.h>

namespace sopr::cuda {

inline unsigned cluster_rank() { return simt::device.code_clusters ? unsigned(simt::block_in_cluster()) : 0; }
inline unsigned cluster_blocks() { return simt::device.code_clusters ? unsigned(simt::blocks_in_cluster()) : 1; }
inline void wait_for_cluster() { simt::wait_for_cluster(); }
template <class T>
T* shared_of_block(T* own, unsigned rank) {
    const auto offset = reinterpret_cast<unsigned char*>(own) - simt::dynamic_shared();
    return reinterpret_cast<T*>(simt::shared_of_block(int(rank)) + offset);
}

}  // namespace sopr::cuda
