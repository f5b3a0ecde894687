/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plan plan;

static const struct {
	const char *name, *meaning;
	uint64_t least;
} knobs[] = {
#define KNOB(name, least, drawn, meaning) {#name, meaning, least},
#include "knobs.def"
#undef KNOB
};

static const struct {
	const char *fault;
	bool harmless;
} odds[] = {
#define ODD(id, fault, harmless, meaning) {fault, harmless},
#include "odd.def"
#undef ODD
};

static const char *const handoffs[] = {
#define HANDOFF(id, name) name,
#include "handoffs.def"
#undef HANDOFF
};

const char *knob_name(enum knob k)
{
	return knobs[k].name;
}

uint64_t knob_least(enum knob k)
{
	return knobs[k].least;
}

const char *knob_meaning(enum knob k)
{
	return knobs[k].meaning;
}

const char *odd_fault(enum odd o)
{
	return odds[o].fault;
}

bool odd_is_harmless(enum odd o)
{
	return odds[o].harmless;
}

const char *handoff_name(enum dialect d)
{
	return handoffs[d];
}

static uint64_t stream;

static uint64_t plan_number(uint64_t n)
{
	uint64_t z = (stream += UINT64_C(0x9e3779b97f4a7c15));
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	z ^= z >> 31;
	return n > 1 ? z % n : 0;
}

static void stream_begin(uint64_t seed, const char *name)
{
	stream = seed * UINT64_C(0xd1342543de82ef95);
	for (; *name != '\0'; name++)
		stream = (stream ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
	(void)plan_number(2);
}

static uint64_t knob_draw(enum knob k)
{
#define draw(n) plan_number(n) /* As knobs.def says it */
	switch (k) {
#define KNOB(name, least, drawn, meaning) \
	case KNOB_##name:                 \
		return drawn;
#include "knobs.def"
#undef KNOB
#undef draw
	case KNOB_COUNT:
		break;
	}
	return 0;
}

void plan_draw(uint64_t seed)
{
	plan.seed = seed;
	for (enum knob k = 0; k < KNOB_COUNT; k++) {
		stream_begin(seed, knobs[k].name);
		if (!plan.set[k])
			plan.at[k] = knob_draw(k);
	}
}

bool plan_set(const char *text)
{
	const char *value = strchr(text, '=');
	for (enum knob k = 0; value != NULL && k < KNOB_COUNT; k++) {
		size_t n = strlen(knobs[k].name);
		if (n != (size_t)(value - text) || memcmp(knobs[k].name, text, n) != 0)
			continue;
		char *end;
		plan.at[k] = strtoull(value + 1, &end, 10);
		if (value[1] < '0' || value[1] > '9' || *end != '\0')
			return false;
		plan.set[k] = true;
		return true;
	}
	return false;
}

void plan_print(void)
{
	for (enum knob k = 0; k < KNOB_COUNT; k++)
		if (plan.at[k] != knobs[k].least)
			printf("  %-12s %6llu  %s\n", knobs[k].name, (unsigned long long)plan.at[k],
				knobs[k].meaning);
}
