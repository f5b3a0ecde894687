/* SPDX-License-Identifier: Apache-2.0 */
/* backoff: how long to wait before the next attempt. The delay doubles from |first| to |last|; its upper half
 * is random, so that many clients that lost the same peer do not reconnect at the same moment. */
#pragma once
#include "base/core/err.h"

struct cgn_backoff {
	cgn_nsec first, last;
	unsigned failures;
};
/* Count a failure and return the delay before the next attempt. */
cgn_nsec cgn_backoff_next(struct cgn_backoff *b);
static inline void cgn_backoff_reset(struct cgn_backoff *b)
{
	b->failures = 0;
}
