// For every processor that the compiler knows.

#include "path.h"
