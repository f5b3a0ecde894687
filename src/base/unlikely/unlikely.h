/* SPDX-License-Identifier: Apache-2.0 */
/* unlikely: places at which a program may go a legal way that it seldom goes: a cache misses, a batch has one element, a timer
 * is late. A program goes these ways for its own reasons only. The simulated world (tests/world) links another unlikely_choice and
 * lets the seed choose. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum unlikely {
#define UNLIKELY(name, worlds, meaning) UNLIKELY_##name,
#include "base/unlikely/unlikely.def"
#undef UNLIKELY
	UNLIKELY_COUNT
};

/* NULL in a program. A constant of another object, so that the simulation can replace it when it is linked. */
extern bool (*const unlikely_choice)(enum unlikely place);

/* Return true if |place| is to go its unlikely way now. Costs a program one compare. */
static inline bool unlikely_way(enum unlikely place)
{
	return __builtin_expect(unlikely_choice != NULL, 0) && unlikely_choice(place);
}
