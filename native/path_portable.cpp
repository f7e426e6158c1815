// For every processor that the compiler knows.

#define VOXPIPE_PATH_NAME voxpipe_portable
#define LANES 4  // 16 bytes: NEON, SSE2
#if defined(__aarch64__) || defined(__SSE4_1__)
#define VOXPIPE_HAS_FLOOR 1
#else
#define VOXPIPE_HAS_FLOOR 0
#endif

#include "path.h"
