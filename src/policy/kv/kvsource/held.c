/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "kvsource_priv.h"

static size_t held_place(const struct held *h, uint64_t seq)
{
	size_t i = h->n;
	while (i > 0 && h->v[i - 1].seq >= seq) /* Batches mostly come in order. */
		i--;
	return i;
}

bool held_put(struct held *h, uint64_t seq, struct cgn_str payload)
{
	size_t i = held_place(h, seq);
	if (i < h->n && h->v[i].seq == seq)
		return true;
	if (h->n == KVSOURCE_HELD_BATCHES || payload.n > KVSOURCE_HELD_BYTES - h->bytes)
		return false;
	char *copy = malloc(payload.n + 1);
	if (copy == NULL)
		return false;
	if (payload.n > 0)
		memcpy(copy, payload.p, payload.n);
	memmove(&h->v[i + 1], &h->v[i], (h->n - i) * sizeof h->v[0]);
	h->v[i] = (struct held_batch){seq, copy, payload.n};
	h->n++;
	h->bytes += payload.n;
	return true;
}

bool held_take(struct held *h, uint64_t seq, struct held_batch *out)
{
	if (h->n == 0 || h->v[0].seq != seq)
		return false;
	*out = h->v[0];
	h->n--;
	h->bytes -= out->n;
	memmove(&h->v[0], &h->v[1], h->n * sizeof h->v[0]);
	return true;
}

uint64_t held_first(const struct held *h)
{
	return h->n > 0 ? h->v[0].seq : UINT64_MAX;
}

void held_drop_below(struct held *h, uint64_t seq)
{
	struct held_batch b;
	while (h->n > 0 && h->v[0].seq < seq && held_take(h, h->v[0].seq, &b))
		free(b.payload);
}

void held_clear(struct held *h)
{
	for (size_t i = 0; i < h->n; i++)
		free(h->v[i].payload);
	h->n = h->bytes = 0;
}
