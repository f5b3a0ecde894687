/* SPDX-License-Identifier: Apache-2.0 */
/* book: the tables of models and of holders. */
#include <stdlib.h>

#include "base/mix/mix.h"
#include "quote_priv.h"

#define PROBES ((size_t)8)
#define TRACKS ((size_t)QUOTE_PLACES * QUOTE_FORMS * QUOTE_FIGURES)

struct quote_book *quote_book_new(void)
{
	struct quote_book *b = CGN_NEW(struct quote_book);
	b->tag = QUOTE_BOOK_TAG;
	b->holders = CGN_NEW_ARRAY(struct quote_holder, QUOTE_HOLDERS);
	return b;
}

void quote_book_free(struct quote_book **take)
{
	struct quote_book *b = CGN_TAKE_LIVE(take, QUOTE_BOOK_TAG);
	if (b == NULL)
		return;
	for (size_t i = 0; i < QUOTE_MODELS; i++)
		free(b->models[i].tracks);
	free(b->holders);
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
	free(to->tracks);
	*to = (struct quote_model){.name = name, .tracks = CGN_NEW_ARRAY(struct quote_track, TRACKS)};
	return to;
}

struct quote_track *quote_track_of(struct quote_book *b, const struct quote_key *key, enum quote_figure f,
	bool add)
{
	CGN_LIVE(b, QUOTE_BOOK_TAG);
	struct quote_model *m = model_find(b, key->model);
	if (m == NULL && add)
		m = model_add(b, key->model);
	if (m == NULL)
		return NULL;
	m->used = ++b->turn;
	size_t form = (size_t)key->place * QUOTE_FORMS + (key->whole ? 1 : 0);
	return &m->tracks[form * QUOTE_FIGURES + (size_t)f];
}

struct quote_holder *quote_holder_of(struct quote_book *b, uint64_t model, uint64_t of, bool add)
{
	uint64_t name = mix64(model ^ mix64(of));
	name += name == 0;
	struct quote_holder *to = NULL;
	CGN_LIVE(b, QUOTE_BOOK_TAG);
	for (size_t i = 0; i < PROBES; i++) {
		struct quote_holder *h = &b->holders[(name + i) % QUOTE_HOLDERS];
		if (h->name == name) {
			h->used = ++b->turn;
			return h;
		}
		if (to == NULL || h->used < to->used)
			to = h;
	}
	if (!add)
		return NULL;
	*to = (struct quote_holder){.name = name, .used = ++b->turn};
	return to;
}
