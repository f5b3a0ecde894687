/* SPDX-License-Identifier: Apache-2.0 */
#include "base/core/alloc.h"

#include <stdlib.h>
#include <string.h>

void *cgn_zeroed(size_t n, size_t size, const char *where)
{
	void *p = calloc(n > 0 ? n : 1, size);
	if (p == NULL)
		cgn_out_of_memory(n * size, where);
	return p;
}

void *cgn_zeroed_lines(size_t bytes, const char *where)
{
	void *p = aligned_alloc(64, bytes);
	if (p == NULL)
		cgn_out_of_memory(bytes, where);
	return memset(p, 0, bytes);
}

void *cgn_grown(void *p, size_t n, size_t size, const char *where)
{
	void *grown = reallocarray(p, n > 0 ? n : 1, size);
	if (grown == NULL)
		cgn_out_of_memory(n * size, where);
	return grown;
}
