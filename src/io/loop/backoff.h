/* SPDX-License-Identifier: Apache-2.0 */
/* backoff: how long to wait before the next try: doubles from |first| to |last|, and the upper half of it is
 * dice, so that many who lost the same peer do not come back at the same moment. */
#pragma once
#include "base/core/err.h"

struct cgn_backoff {
	cgn_nsec first, last;
	unsigned failures;
};
cgn_nsec cgn_backoff_next(struct cgn_backoff *b); /* counts a failure */
static inline void cgn_backoff_reset(struct cgn_backoff *b)
{
	b->failures = 0;
}
