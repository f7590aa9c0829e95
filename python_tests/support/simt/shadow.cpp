// Reports two threads that touch one place, at least one of them writing, without a barrier between: __syncthreads,
// __syncwarp within a warp, or the barrier of a cluster, which alone orders threads of two blocks. In memory that is
// not shared, clusters of one launch race too. Shuffles and mma order no memory.
//
// The compiler calls the functions __tsan_* below before every access of a kernel. Places are two bytes wide.
#include "shadow.h"

#include <cstdio>
#include <memory>
#include <unordered_map>
#include <utility>

// The linker's names for this library's variables, among them the kernels' static shared memory.
extern "C" {
extern char __bss_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));
}

namespace simt::shadow {

Thread thread;
Range own_stack;

namespace {

constexpr uintptr_t kPlace = 2, kPage = 4096;
constexpr size_t kMaxPages = 2000;

struct Access {
    uint64_t cluster = 0;  // 0: none yet
    Thread by{};
};

struct Place {
    Access write, read;
    bool more_lanes, more_warps, more_blocks;  // read by others than read.by since the barrier
};

struct Page {
    Place places[kPage / kPlace];
};

std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
uintptr_t last_number;
Page* last_page;
Range dynamic;
bool watching;
uint64_t cluster, first_of_launch;
std::string race;

bool is_shared(const void* address) { return dynamic.contains(address) || Range{__bss_start, _end}.contains(address); }

Page& page_of(uintptr_t address) {
    const uintptr_t number = address / kPage;
    if (last_page && number == last_number) return *last_page;
    auto& page = pages[number];
    if (!page) page = std::make_unique<Page>();
    last_number = number;
    return *(last_page = page.get());
}

// Whether no barrier of their block, if they share one, or of the cluster lies between an access and this thread's.
bool same_barriers(const Thread& earlier) {
    if (earlier.cluster_epoch != thread.cluster_epoch) return false;
    return earlier.block != thread.block || earlier.block_epoch == thread.block_epoch;
}

// Whether this thread's access is unordered with an earlier one by another.
bool unordered(const Access& earlier, bool shared) {
    if (earlier.cluster != cluster) return !shared && earlier.cluster >= first_of_launch;
    if (!same_barriers(earlier.by)) return false;
    if (earlier.by.block != thread.block) return true;
    if (earlier.by.index == thread.index) return false;
    return earlier.by.warp != thread.warp || earlier.by.warp_epoch == thread.warp_epoch;
}

void report(const char* what, const void* address, const Access& earlier, bool shared) {
    if (!race.empty()) return;
    char text[200];
    std::snprintf(text, sizeof text,
                  "race: threads %d and %d%s touch one place of %s memory without a barrier between (%s)",
                  earlier.by.index, thread.index,
                  earlier.cluster == cluster && earlier.by.block != thread.block ? " of two blocks of a cluster" : "",
                  shared ? "shared" : "global", what);
    race = text;
    (void)address;
}

}  // namespace

void start_cluster(bool first, const void* begin, const void* end) {
    ++cluster;
    if (first) first_of_launch = cluster;
    if (first && pages.size() > kMaxPages) {  // nothing races with an earlier launch
        pages.clear();
        last_page = nullptr;
    }
    dynamic = {begin, end};
    watching = true;
}

std::string end_cluster() {
    watching = false;
    return std::exchange(race, {});
}

void touch(const void* address, int bytes, bool writes) {
    if (!watching || own_stack.contains(address)) return;
    const bool shared = is_shared(address);
    const uintptr_t begin = uintptr_t(address), end = begin + uintptr_t(bytes);
    for (uintptr_t at = begin / kPlace * kPlace; at < end; at += kPlace) {
        Place& place = page_of(at).places[at % kPage / kPlace];
        const Access now{cluster, thread};
        if (unordered(place.write, shared))
            report(writes ? "write, write" : "write, read", address, place.write, shared);
        Access& read = place.read;
        const bool same_cluster = read.cluster == cluster && read.by.cluster_epoch == thread.cluster_epoch;
        const bool same_block = same_cluster && read.by.block == thread.block;
        const bool same_barrier = same_block && read.by.block_epoch == thread.block_epoch;
        const bool same_warp = same_barrier && read.by.warp == thread.warp && read.by.warp_epoch == thread.warp_epoch;
        if (writes) {
            const bool others = (same_cluster && place.more_blocks) || (same_barrier && place.more_warps) ||
                                (same_warp && place.more_lanes);
            if (others || unordered(read, shared)) report("read, write", address, read, shared);
            place.write = now;
            continue;
        }
        if (!same_cluster) {
            read = now;
            place.more_lanes = place.more_warps = place.more_blocks = false;
        } else if (!same_block) {
            place.more_blocks = true;
        } else if (!same_barrier) {
            read = now;
            place.more_lanes = place.more_warps = false;
        } else if (read.by.warp != thread.warp) {
            place.more_warps = true;
        } else if (!same_warp) {
            read = now;
            place.more_lanes = false;
        } else if (read.by.index != thread.index) {
            place.more_lanes = true;
        }
    }
}

}  // namespace simt::shadow

#define SHADOW(bytes)                                                                                \
    void __tsan_read##bytes(void* address) { simt::shadow::touch(address, bytes, false); }           \
    void __tsan_write##bytes(void* address) { simt::shadow::touch(address, bytes, true); }           \
    void __tsan_unaligned_read##bytes(void* address) { simt::shadow::touch(address, bytes, false); } \
    void __tsan_unaligned_write##bytes(void* address) { simt::shadow::touch(address, bytes, true); }

extern "C" {
SHADOW(1)
SHADOW(2)
SHADOW(4)
SHADOW(8)
SHADOW(16)
void __tsan_read_range(void* address, unsigned long bytes) { simt::shadow::touch(address, int(bytes), false); }
void __tsan_write_range(void* address, unsigned long bytes) { simt::shadow::touch(address, int(bytes), true); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) { return __builtin_memcpy(to, from, bytes); }
void* __tsan_memset(void* to, int value, unsigned long bytes) { return __builtin_memset(to, value, bytes); }
}
