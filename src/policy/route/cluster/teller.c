/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/cluster/teller.h"

static uint64_t value_of(const _Atomic uint64_t *at)
{
	return atomic_load_explicit(at, memory_order_relaxed);
}

void teller_reset(struct teller *t)
{
	atomic_store_explicit(&t->rests, 0, memory_order_relaxed);
}

void teller_asked(struct teller *t, cgn_nsec now)
{
	if (atomic_fetch_add_explicit(&t->asked, 1, memory_order_relaxed) == 0)
		atomic_store_explicit(&t->heard, now, memory_order_relaxed);
}

void teller_ended(struct teller *t)
{
	atomic_fetch_sub_explicit(&t->asked, 1, memory_order_relaxed);
}

void teller_answered(struct teller *t, cgn_nsec now)
{
	atomic_store_explicit(&t->heard, now, memory_order_relaxed);
	atomic_store_explicit(&t->rests, 0, memory_order_relaxed);
}

void teller_was_late(struct teller *t, cgn_nsec now)
{
	atomic_store_explicit(&t->rests, now + TELLER_REST, memory_order_relaxed);
}

static bool is_asked(const struct teller *t)
{
	return atomic_load_explicit(&t->asked, memory_order_relaxed) > 0;
}

bool teller_rests(const struct teller *t, cgn_nsec now)
{
	uint64_t rests = value_of(&t->rests);
	return rests > now || (rests != 0 && is_asked(t));
}

bool teller_hesitates(const struct teller *t, cgn_nsec now, cgn_nsec patience)
{
	return is_asked(t) && cgn_since(now, value_of(&t->heard)) > patience;
}
