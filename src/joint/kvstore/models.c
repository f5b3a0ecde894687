/* SPDX-License-Identifier: Apache-2.0 */
/* Names of models: few and long, so a block stores a number instead of the name. */
#include "kvstore_priv.h"

#include <stdlib.h>
#include <xxhash.h>

static uint16_t *model_find(struct kvstore_models *m, uint64_t seed, struct cgn_str name)
{
	uint16_t *at = &m->bucket[XXH3_64bits_withSeed(name.p, name.n, seed) % CGN_COUNT(m->bucket)];
	while (*at != 0 && !cgn_str_eq((struct cgn_str){m->row[*at]->name, m->row[*at]->n}, name))
		at = &m->row[*at]->next;
	return at;
}

/* Add a model at |at|, the place that model_find returned. */
static CGN_RC model_add(struct kvstore *s, uint16_t *at, struct cgn_str name, struct cgn_err *err)
{
	struct kvstore_models *m = &s->models;
	if (m->n_free == 0 && m->top == KVSTORE_MODELS)
		return CGN_FAIL(err, OVERLOADED, "blocks of %u models are held: no room for one more",
			KVSTORE_MODELS - 1);
	struct kvstore_model *row = malloc(sizeof *row + name.n);
	if (row == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the name of a model");
	*row = (struct kvstore_model){.id = m->n_free > 0 ? m->free[--m->n_free] : (uint16_t)m->top++,
		.n = name.n};
	memcpy(row->name, name.p, name.n);
	m->row[row->id] = row;
	*at = row->id;
	atomic_fetch_add(&s->aside_bytes, sizeof *row + name.n);
	return CGN_OK;
}

static CGN_RC model_take(struct kvstore *s, struct cgn_str name, uint16_t *out, struct cgn_err *err)
{
	uint16_t *at = model_find(&s->models, s->seed, name);
	if (*at == 0)
		CGN_TRY(model_add(s, at, name, err));
	s->models.row[*at]->refs++;
	*out = *at;
	return CGN_OK;
}

CGN_RC kvstore_model_take(struct kvstore *s, struct cgn_str name, uint16_t *out, struct cgn_err *err)
{
	*out = 0;
	if (name.n == 0)
		return CGN_OK;
	(void)pthread_mutex_lock(&s->models.lock);
	cgn_rc rc = model_take(s, name, out, err);
	(void)pthread_mutex_unlock(&s->models.lock);
	return rc;
}

void kvstore_model_give(struct kvstore *s, uint16_t id)
{
	struct kvstore_models *m = &s->models;
	if (id == 0)
		return;
	(void)pthread_mutex_lock(&m->lock);
	struct kvstore_model *row = m->row[id];
	if (--row->refs == 0) {
		*model_find(m, s->seed, (struct cgn_str){row->name, row->n}) = row->next;
		m->row[id] = NULL;
		m->free[m->n_free++] = id;
		atomic_fetch_sub(&s->aside_bytes, sizeof *row + row->n);
		free(row);
	}
	(void)pthread_mutex_unlock(&m->lock);
}

struct cgn_str kvstore_model_name(const struct kvstore *s, uint16_t id)
{
	return id == 0 ? (struct cgn_str){0}
		       : (struct cgn_str){s->models.row[id]->name, s->models.row[id]->n};
}
