// Which thread touched which memory last: shadow.cpp.
#pragma once

#include <cstdint>
#include <string>

namespace simt::shadow {

// A thread, with its warp and block in the cluster, and the barriers it has passed.
struct Thread {
    uint16_t index, warp, block;
    unsigned cluster_epoch, block_epoch, warp_epoch;
};

struct Range {
    const void *begin, *end;
    bool contains(const void* address) const { return address >= begin && address < end; }
};

extern Thread thread;    // that runs
extern Range own_stack;  // of the thread that runs

// Accesses count between these. Dynamic shared memory of the cluster's blocks lies in begin : end; `first` marks a
// launch's first cluster.
void start_cluster(bool first, const void* begin, const void* end);
std::string end_cluster();  // describes the first race, or is empty

void touch(const void* address, int bytes, bool writes);

}  // namespace simt::shadow
