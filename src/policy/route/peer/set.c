/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/peer/set.h"

#include <stdlib.h>
#include <string.h>

#include "base/mix/mix.h"

#define DRAFT_FIRST 256
#define LEAP        8

void peer_set_ref(struct peer_set *s)
{
	atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}

void peer_set_unref(struct peer_set **take)
{
	struct peer_set *s = CGN_TAKE(take);
	if (s != NULL && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1)
		free(s);
}

/* ---- filling ---- */

static bool draft_reserve(struct peer_draft *d, size_t cap)
{
	if (cap > PEER_BLOCKS)
		cap = PEER_BLOCKS;
	if (cap <= d->cap)
		return false;
	struct peer_set *s = realloc(d->set, sizeof *s + cap * sizeof s->v[0]);
	if (s == NULL)
		return false;
	if (d->set == NULL)
		s->n = 0;
	d->set = s;
	d->cap = cap;
	return true;
}

static bool draft_grow(struct peer_draft *d)
{
	return draft_reserve(d, d->set == NULL ? DRAFT_FIRST : d->cap + d->cap / 2);
}

void peer_draft_add(struct peer_draft *d, uint32_t fingerprint)
{
	d->bad = d->bad || ((d->set == NULL || d->set->n == d->cap) && !draft_grow(d));
	if (!d->bad)
		d->set->v[d->set->n++] = fingerprint;
}

static int members_order(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return x < y ? -1 : x > y;
}

static bool is_ascending(const struct peer_set *s, size_t from)
{
	for (size_t i = from > 0 ? from : 1; i < s->n; i++)
		if (s->v[i - 1] >= s->v[i])
			return false;
	return true;
}

void peer_draft_part(struct peer_draft *d)
{
	if (d->bad || d->set == NULL)
		return;
	struct peer_set *s = d->set;
	size_t n = d->sorted;
	if (is_ascending(s, n)) {
		d->sorted = s->n;
		return;
	}
	qsort(s->v + n, s->n - n, sizeof s->v[0], members_order);
	for (size_t i = n; i < s->n; i++) {
		CGN_MUST(n == 0 || s->v[n - 1] <= s->v[i]);
		if (n == 0 || s->v[n - 1] != s->v[i])
			s->v[n++] = s->v[i];
	}
	s->n = (uint32_t)n;
	d->sorted = n;
}

static void set_sum(struct peer_set *s)
{
	s->sum = 0;
	for (uint32_t i = 0; i < s->n; i++)
		s->sum += mix_seeded(s->v[i]);
}

struct peer_set *peer_draft_finish(struct peer_draft *d)
{
	peer_draft_part(d);
	if (!d->bad && d->set == NULL)
		d->bad = !draft_grow(d);
	if (d->bad) {
		peer_draft_drop(d);
		return NULL;
	}
	struct peer_set *s = realloc(d->set, sizeof *s + d->set->n * sizeof s->v[0]);
	s = s != NULL ? s : d->set;
	*d = (struct peer_draft){0};
	atomic_init(&s->refs, 1);
	s->width = PEER_WIDTH;
	set_sum(s);
	return s;
}

void peer_draft_drop(struct peer_draft *d)
{
	free(d->set);
	*d = (struct peer_draft){0};
}

/* ---- width ---- */

static unsigned width_for(uint32_t n)
{
	unsigned width = PEER_WIDTH_BEYOND;
	for (; n > 0; n /= 2)
		width++;
	return width < PEER_WIDTH_LEAST ? PEER_WIDTH_LEAST : width < PEER_WIDTH ? width : PEER_WIDTH;
}

unsigned peer_width(uint32_t n, unsigned before)
{
	const unsigned width = width_for(n);
	return before >= width && before <= width + PEER_WIDTH_SLACK ? before : width;
}

static uint32_t width_mask(unsigned width)
{
	return UINT32_MAX << (PEER_WIDTH - width);
}

void peer_set_narrow(struct peer_set *s, unsigned width)
{
	const uint32_t mask = width_mask(width);
	uint32_t n = 0;
	CGN_MUST(width >= PEER_WIDTH_LEAST && width <= s->width);
	for (uint32_t i = 0; i < s->n; i++)
		if (n == 0 || s->v[n - 1] != (s->v[i] & mask))
			s->v[n++] = s->v[i] & mask;
	s->n = n;
	s->width = width;
	set_sum(s);
}

/* ---- looking ---- */

/* Return the place of the first member that is not less. Members are spread evenly: the place is near the one that the
 * value suggests, from which the search goes on in steps that double. */
static uint32_t lower_place(const struct peer_set *s, uint32_t v)
{
	const uint32_t guess = (uint32_t)((uint64_t)v * s->n >> 32);
	uint32_t lo = 0, hi = s->n;
	if (guess < s->n && s->v[guess] < v) {
		lo = guess + 1;
		for (uint32_t step = 16; lo + step < s->n; step *= 2) {
			if (s->v[lo + step] >= v) {
				hi = lo + step;
				break;
			}
			lo += step + 1;
		}
	} else {
		hi = guess;
		for (uint32_t step = 16; hi > step; step *= 2) {
			if (s->v[hi - step - 1] < v) {
				lo = hi - step;
				break;
			}
			hi -= step + 1;
		}
	}
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		if (s->v[mid] < v)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static bool set_has(const struct peer_set *s, uint32_t fingerprint)
{
	fingerprint &= width_mask(s->width);
	uint32_t at = lower_place(s, fingerprint);
	return at < s->n && s->v[at] == fingerprint;
}

static size_t match_sampled(const struct peer_set *s, unsigned shift, const uint64_t *chain, size_t n)
{
	size_t held = 0;
	for (size_t i = 0; i < n; i++) {
		if (!peer_sampled(chain[i], shift))
			continue;
		if (!set_has(s, peer_fingerprint(chain[i])))
			break;
		held = i + 1;
	}
	return held;
}

size_t peer_set_match(const struct peer_set *s, unsigned shift, const uint64_t *chain, size_t n)
{
	size_t held = 0;
	if (shift > 0)
		return match_sampled(s, shift, chain, n);
	while (held + LEAP <= n && set_has(s, peer_fingerprint(chain[held + LEAP - 1])))
		held += LEAP;
	while (held < n && set_has(s, peer_fingerprint(chain[held])))
		held++;
	return held;
}

/* ---- changes ---- */

bool peer_set_differ(const struct peer_set *before, const struct peer_set *after, struct peer_draft *removed,
	struct peer_draft *added)
{
	uint32_t a = 0, b = 0;
	while (a < before->n || b < after->n) {
		if (b == after->n || (a < before->n && before->v[a] < after->v[b])) {
			peer_draft_add(removed, before->v[a++]);
		} else if (a == before->n || after->v[b] < before->v[a]) {
			peer_draft_add(added, after->v[b++]);
		} else {
			a++;
			b++;
		}
	}
	return !removed->bad && !added->bad;
}

struct peer_set *peer_set_change(const struct peer_set *before, const struct peer_set *removed,
	const struct peer_set *added)
{
	struct peer_draft d = {0};
	uint32_t gone = 0, more = 0;
	(void)draft_reserve(&d, (size_t)before->n + added->n); /* Without it the draft grows. */
	for (uint32_t i = 0; i <= before->n && !d.bad; i++) {
		/* The members that come before this one; behind the last one, all. */
		while (more < added->n && (i == before->n || added->v[more] < before->v[i]))
			peer_draft_add(&d, added->v[more++]);
		if (i == before->n)
			break;
		while (gone < removed->n && removed->v[gone] < before->v[i])
			gone++;
		if (gone == removed->n || removed->v[gone] != before->v[i])
			peer_draft_add(&d, before->v[i]);
	}
	struct peer_set *s = peer_draft_finish(&d);
	if (s != NULL)
		s->width = before->width;
	return s;
}

struct peer_set *peer_set_places(const struct peer_set *s, const struct peer_set *some)
{
	struct peer_draft d = {0};
	for (uint32_t i = 0, k = 0; i < s->n && k < some->n; i++)
		if (s->v[i] == some->v[k]) {
			peer_draft_add(&d, i);
			k++;
		}
	return peer_draft_finish(&d);
}

struct peer_set *peer_set_at(const struct peer_set *s, const struct peer_set *places)
{
	struct peer_draft d = {0};
	for (uint32_t i = 0; i < places->n; i++) {
		CGN_MUST(places->v[i] < s->n);
		peer_draft_add(&d, s->v[places->v[i]]);
	}
	return peer_draft_finish(&d);
}
