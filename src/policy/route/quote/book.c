/* SPDX-License-Identifier: Apache-2.0 */
/* book: the tables of models and of groups of requests. */
#include <stdlib.h>

#include "quote_priv.h"

#define PROBES ((size_t)8)

static void model_clear(struct quote_model *m)
{
	for (size_t i = 0; i < CGN_COUNT(m->tracks); i++)
		free(m->tracks[i]);
	*m = (struct quote_model){0};
}

struct quote_book *quote_book_new(void)
{
	struct quote_book *b = CGN_NEW(struct quote_book);
	b->tag = QUOTE_BOOK_TAG;
	b->groups = CGN_NEW_ARRAY(struct quote_lengths, QUOTE_GROUPS);
	return b;
}

void quote_book_free(struct quote_book **take)
{
	struct quote_book *b = CGN_TAKE_LIVE(take, QUOTE_BOOK_TAG);
	if (b == NULL)
		return;
	for (size_t i = 0; i < QUOTE_MODELS; i++)
		model_clear(&b->models[i]);
	free(b->groups);
	b->tag = 0;
	free(b);
}

static struct quote_model *model_find(struct quote_book *b, uint64_t name)
{
	for (size_t i = 0; i < QUOTE_MODELS && b->models[i].name != 0; i++)
		if (b->models[i].name == name)
			return &b->models[i];
	return NULL;
}

/* Places are taken in order and are never given back. */
static struct quote_model *model_add(struct quote_book *b, uint64_t name)
{
	struct quote_model *to = &b->models[0];
	for (size_t i = 0; i < QUOTE_MODELS && to->name != 0; i++)
		if (b->models[i].name == 0 || b->models[i].used < to->used)
			to = &b->models[i];
	model_clear(to);
	to->name = name;
	return to;
}

static size_t form_of(const struct quote_key *key, bool own)
{
	size_t kind = own ? 1 + (size_t)key->limited * 2 + key->narrow : 0;
	return ((size_t)key->place * 2 + key->whole) * QUOTE_KINDS + kind;
}

struct quote_track *quote_track_of(struct quote_book *b, const struct quote_key *key, enum quote_figure f,
	bool own, bool add)
{
	CGN_LIVE(b, QUOTE_BOOK_TAG);
	struct quote_model *m = model_find(b, key->model);
	if (m == NULL && add)
		m = model_add(b, key->model);
	if (m == NULL)
		return NULL;
	m->used = ++b->turn;
	struct quote_track **tracks = &m->tracks[form_of(key, own)];
	if (*tracks == NULL && add)
		*tracks = CGN_NEW_ARRAY(struct quote_track, QUOTE_FIGURES);
	return *tracks != NULL ? &(*tracks)[f] : NULL;
}

struct quote_lengths *quote_lengths_of(struct quote_book *b, uint64_t name, bool add)
{
	struct quote_lengths *to = NULL;
	CGN_LIVE(b, QUOTE_BOOK_TAG);
	for (size_t i = 0; i < PROBES; i++) {
		struct quote_lengths *h = &b->groups[(name + i) % QUOTE_GROUPS];
		if (h->name == name) {
			h->used = ++b->turn;
			return h;
		}
		if (to == NULL || h->used < to->used)
			to = h;
	}
	if (!add)
		return NULL;
	*to = (struct quote_lengths){.name = name, .used = ++b->turn};
	return to;
}
