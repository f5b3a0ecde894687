/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled with -mavx2: nothing here may run before sum.c has looked at the processor. */
#define SUM_OPS sum_avx2
#include "base/sum/width.h"
