#include "cuda/kernels_cuda.h"
#include "cuda/launch.h"

namespace sopr::cuda {

int64_t launch_count() { return launches; }
void set_device(int index) { check("set_device", cudaSetDevice(index)); }

}  // namespace sopr::cuda
