/* SPDX-License-Identifier: Apache-2.0 */
/* journal: the generations of a cluster's set, and the changes between them. */
#include "policy/route/peer/code.h"
#include "policy/route/peer/summary.h"

#define LEAST_BYTES ((size_t)64 * 1024)

static struct cgn_buf *delta_of(struct peer_journal *j, uint64_t generation)
{
	return &j->deltas[generation % PEER_DELTAS];
}

static void deltas_drop(struct peer_journal *j)
{
	for (size_t i = 0; i < PEER_DELTAS; i++)
		cgn_buf_fini(&j->deltas[i]);
	j->n_deltas = 0;
	j->bytes = 0;
}

void peer_journal_fini(struct peer_journal *j)
{
	deltas_drop(j);
	peer_set_unref(&j->set);
	*j = (struct peer_journal){0};
}

/* Keep the changes only as long as they are shorter than a quarter of the set in memory. */
static void deltas_fit(struct peer_journal *j)
{
	size_t most = (size_t)j->set->n > LEAST_BYTES ? j->set->n : LEAST_BYTES;
	while (j->n_deltas > 0 && j->bytes > most) {
		struct cgn_buf *oldest = delta_of(j, j->generation - j->n_deltas + 1);
		j->bytes -= oldest->n;
		cgn_buf_fini(oldest);
		j->n_deltas--;
	}
}

static void delta_put(const struct peer_set *before, const struct peer_set *removed,
	const struct peer_set *added, unsigned version, struct cgn_buf *code)
{
	if (version == 1) {
		peer_set_put(removed, code);
		peer_set_put(added, code);
		return;
	}
	struct peer_set *places = peer_set_places(before, removed);
	code->bad |= places == NULL;
	if (places != NULL) {
		peer_gaps_put(places, 0, before->n, code);
		peer_gaps_put(added, PEER_WIDTH - before->width, UINT64_C(1) << before->width, code);
	}
	peer_set_unref(&places);
}

static bool delta_make(const struct peer_set *before, const struct peer_set *after, unsigned version,
	struct cgn_buf *code)
{
	struct peer_draft removed = {0}, added = {0};
	bool fine = peer_set_differ(before, after, &removed, &added);
	struct peer_set *gone = peer_draft_finish(&removed), *more = peer_draft_finish(&added);
	fine = fine && gone != NULL && more != NULL;
	if (fine)
		delta_put(before, gone, more, version, code);
	peer_set_unref(&gone);
	peer_set_unref(&more);
	return fine && !code->bad;
}

static void delta_keep(struct peer_journal *j, const struct peer_set *after)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf code = {0};
	if (!delta_make(j->set, after, j->version, &code)) {
		deltas_drop(j);
		return;
	}
	struct cgn_buf *at = delta_of(j, j->generation);
	j->bytes -= at->n;
	cgn_buf_fini(at);
	cgn_buf_fit(&code);
	*at = code;
	code = (struct cgn_buf){0};
	j->bytes += at->n;
	j->n_deltas += j->n_deltas < PEER_DELTAS;
}

static bool sets_equal(const struct peer_set *a, const struct peer_set *b)
{
	return a->n == b->n && a->sum == b->sum && memcmp(a->v, b->v, a->n * sizeof a->v[0]) == 0;
}

void peer_journal_add(struct peer_journal *j, struct peer_set **take, unsigned shift, unsigned version,
	uint64_t first)
{
	struct peer_set *set = *take;
	bool follows = j->set != NULL && j->shift == shift && j->version == version;
	*take = NULL;
	if (version > 1)
		peer_set_narrow(set, peer_width(set->n, follows ? j->set->width : 0));
	follows = follows && j->set->width == set->width;
	if (follows && sets_equal(j->set, set)) {
		peer_set_unref(&set);
		return;
	}
	j->generation = j->generation > 0 ? j->generation + 1 : first;
	if (follows)
		delta_keep(j, set);
	else
		deltas_drop(j);
	peer_set_unref(&j->set);
	j->set = set;
	j->shift = shift;
	j->version = version;
	deltas_fit(j);
}

uint64_t peer_journal_pick(const struct peer_journal *j, const uint64_t *since, size_t n)
{
	uint64_t best = 0;
	for (size_t i = 0; i < n; i++)
		if (since[i] != 0 && j->generation - since[i] <= j->n_deltas && since[i] > best)
			best = since[i];
	return best;
}

void peer_journal_ask(const struct peer_journal *j, uint64_t since, unsigned version,
	struct peer_summary *out, struct peer_set **whole, struct cgn_buf *sets)
{
	const bool told = j->set != NULL && j->version <= version;
	out->version = told ? j->version : version < PEER_VERSION ? version : PEER_VERSION;
	out->shift = told ? j->shift : 0;
	out->width = told ? j->set->width : PEER_WIDTH;
	out->generation = told ? j->generation : 0;
	out->sum = told ? j->set->sum : 0;
	out->blocks = told ? j->set->n : 0;
	out->base = 0;
	*whole = NULL;
	uint64_t behind = j->generation - since; /* A number that is ahead gives a great one. */
	if (!told)
		return;
	if (since == 0 || behind > j->n_deltas) {
		*whole = j->set;
		peer_set_ref(j->set);
		return;
	}
	out->base = since;
	for (uint64_t g = since + 1; g <= j->generation; g++)
		cgn_buf_str(sets, cgn_buf_view(&j->deltas[g % PEER_DELTAS]));
}
