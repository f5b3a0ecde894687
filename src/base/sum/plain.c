/* SPDX-License-Identifier: Apache-2.0 */
#define SUM_OPS sum_plain
#include "base/sum/width.h"
