/* SPDX-License-Identifier: Apache-2.0 */
/* ways: which unlikely ways of the programs (base/unlikely) are gone. The seed opens one place in three, each with a rate of its
 * own, from a stream of its own: a place that is added leaves the choices at the others as they are. */
#include <string.h>

#include "base/mix/mix.h"
#include "base/unlikely/unlikely.h"
#include "world_priv.h"

#define WAYS_OPEN 3 /* The seed opens one of so many places */

static struct way {
	uint64_t random;
	uint64_t rate; /* The way is gone one of so many times; 0: never */
	uint64_t taken;
} ways[UNLIKELY_COUNT];
static const char *const names[UNLIKELY_COUNT] = {
#define UNLIKELY(name, worlds, meaning) [UNLIKELY_##name] = #name,
#include "base/unlikely/unlikely.def"
#undef UNLIKELY
};

void world_ways_begin(uint64_t seed, bool (*open)(const char *name))
{
	static const uint64_t rates[] = {1, 2, 8, 64};
	for (size_t i = 0; i < UNLIKELY_COUNT; i++) {
		struct way *w = &ways[i];
		*w = (struct way){
			.random = mix_fnv1a(MIX_FNV1A ^ mix_seeded(seed), names[i], strlen(names[i]))};
		uint64_t choice = mix_splitmix(&w->random), rate = mix_splitmix(&w->random);
		if (choice % WAYS_OPEN == 0 && open(names[i]))
			w->rate = rates[rate % CGN_COUNT(rates)];
	}
}

uint64_t world_way_taken(size_t place)
{
	return place < UNLIKELY_COUNT ? ways[place].taken : 0;
}

/* Called by the programs. */
static bool way_choose(enum unlikely place)
{
	struct way *w = &ways[place];
	if (w->rate == 0 || !is_simulated() || mix_splitmix(&w->random) % w->rate != 0)
		return false;
	w->taken++;
	world_note(names[place], w->taken, 0);
	return true;
}

/* Takes the place of libbase's: the linker takes a member of an archive only for a symbol that is missing. */
bool (*const unlikely_choice)(enum unlikely place) = way_choose;
