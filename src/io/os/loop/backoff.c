/* SPDX-License-Identifier: Apache-2.0 */
#include "io/os/loop/backoff.h"

#include "io/os/loop/loop.h"

cgn_nsec cgn_backoff_next(struct cgn_backoff *b)
{
	uint32_t dice;
	cgn_nsec wait = b->first;
	for (unsigned i = 0; i < b->failures && wait < b->last; i++)
		wait *= 2;
	wait = wait < b->last ? wait : b->last;
	b->failures++;
	cgn_random(&dice, sizeof dice);
	return wait / 2 + (cgn_nsec)((double)(wait / 2) * ((double)dice / (double)UINT32_MAX));
}
