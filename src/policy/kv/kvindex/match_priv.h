/* SPDX-License-Identifier: Apache-2.0 */
/* The size of a reader, for the memory budget in kvindex.c. */
#pragma once
#include <stddef.h>

size_t match_reader_bytes(void);
