/* SPDX-License-Identifier: Apache-2.0 */
/* What kvindex.c needs to know of readers: their size. */
#pragma once
#include <stddef.h>

size_t match_reader_bytes(void);
