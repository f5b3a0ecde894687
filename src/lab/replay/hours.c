/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "lab/replay/replay_priv.h"

#define HOUR_S 3600

/* Return the hour |h|; NULL: no memory, and |r| knows. */
static struct replay_hour *hour_of(struct replay *r, size_t h)
{
	struct replay_result *s = r->result;
	if (h < s->n_hours)
		return &s->hours[h];
	size_t n = h + h / 2 + 1;
	struct replay_hour *grown = reallocarray(s->hours, n, sizeof *grown);
	if (grown == NULL) {
		r->no_memory = true;
		return NULL;
	}
	memset(grown + s->n_hours, 0, (n - s->n_hours) * sizeof *grown);
	s->hours = grown;
	s->n_hours = n;
	return &s->hours[h];
}

void hours_ttft(struct replay *r, cgn_nsec came, cgn_nsec took)
{
	struct replay_hour *h = r->cfg->gpu != NULL ? hour_of(r, (size_t)(came / CGN_SEC / HOUR_S)) : NULL;
	if (h != NULL)
		samples_add(&h->ttft, took);
}

void hours_sum_up(struct replay *r)
{
	for (size_t s = 0; s < r->n_seconds && s <= (size_t)(r->now / CGN_SEC); s++) {
		struct replay_hour *h = hour_of(r, s / HOUR_S);
		if (h == NULL)
			return;
		h->joules += r->second_w[s];
	}
	size_t n = (size_t)(r->now / CGN_SEC) / HOUR_S + 1;
	for (; r->result->n_hours > n; r->result->n_hours--)
		samples_fini(&r->result->hours[r->result->n_hours - 1].ttft);
}
