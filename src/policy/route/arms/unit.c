/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/arms/unit.h"

#include "base/mix/mix.h"

#define FADE_AT    16384U /* Requests after which all counts are halved. */
#define FEW        64U    /* A block is not common before so many requests. */
#define KIND_BLOCK 0x5eed0b10c4U
#define KIND_ALONE 0x5eed0a104eU

static void counts_fade(struct unit_counts *c)
{
	c->all /= 2;
	for (size_t i = 0; i < UNIT_COUNTERS; i++)
		c->n[i] /= 2;
}

uint64_t unit_of(struct unit_counts *c, const struct unit_ask *ask)
{
	if (ask->session != 0)
		return ask->session;
	if (++c->all >= FADE_AT)
		counts_fade(c);
	for (size_t i = 0; i < ask->blocks; i++) {
		uint32_t *n = &c->n[mix_stafford(ask->chain[i]) % UNIT_COUNTERS];
		if (++*n <= FEW + c->all / UNIT_COMMON)
			return mix_seeded(ask->chain[i] ^ KIND_BLOCK);
	}
	return mix_seeded(ask->request ^ KIND_ALONE);
}
