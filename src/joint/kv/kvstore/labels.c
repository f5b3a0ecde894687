/* SPDX-License-Identifier: Apache-2.0 */
/* Labels: models and tenants are few and their names are long, so a block stores the number of a pair instead of the
 * names. What follows from them, the sites that may have the block, is decided once for a label. */
#include "kvstore_priv.h"

#include <stdlib.h>
#include <xxhash.h>

static struct cgn_str label_model(const struct kvstore_label *l)
{
	return (struct cgn_str){l->text, l->n_model};
}

static struct cgn_str label_tenant(const struct kvstore_label *l)
{
	return (struct cgn_str){l->text + l->n_model, l->n_tenant};
}

static uint16_t *label_find(struct kvstore_labels *m, uint64_t seed, struct cgn_str model,
	struct cgn_str tenant)
{
	const uint64_t hash =
		XXH3_64bits_withSeed(model.p, model.n, XXH3_64bits_withSeed(tenant.p, tenant.n, seed));
	uint16_t *at = &m->bucket[hash % CGN_COUNT(m->bucket)];
	while (*at != 0 &&
		!(cgn_str_eq(label_model(m->row[*at]), model) &&
			cgn_str_eq(label_tenant(m->row[*at]), tenant)))
		at = &m->row[*at]->next;
	return at;
}

static size_t label_bytes(const struct kvstore_label *l)
{
	return sizeof *l + l->n_model + l->n_tenant;
}

/* Add a label at |at|, the place that label_find returned. */
static CGN_RC label_add(struct kvstore *s, uint16_t *at, struct cgn_str model, struct cgn_str tenant,
	struct cgn_err *err)
{
	struct kvstore_labels *m = &s->labels;
	if (m->n_free == 0 && m->top == KVSTORE_LABELS)
		return CGN_FAIL(err, OVERLOADED,
			"blocks of %u pairs of a model and a tenant are held: no room for one more",
			KVSTORE_LABELS - 1);
	struct kvstore_label *row = cgn_zeroed(1, sizeof *row + model.n + tenant.n, CGN_HERE);
	*row = (struct kvstore_label){.id = m->n_free > 0 ? m->free[--m->n_free] : (uint16_t)m->top++,
		.n_model = (uint16_t)model.n,
		.n_tenant = (uint16_t)tenant.n,
		.leave = kvsites_judge(s->sites, tenant, model)};
	if (model.n > 0)
		memcpy(row->text, model.p, model.n);
	if (tenant.n > 0)
		memcpy(row->text + model.n, tenant.p, tenant.n);
	m->row[row->id] = row;
	*at = row->id;
	atomic_fetch_add(&s->aside_bytes, label_bytes(row));
	return CGN_OK;
}

static CGN_RC label_take(struct kvstore *s, struct cgn_str model, struct cgn_str tenant, uint16_t *out,
	struct cgn_err *err)
{
	*out = 0;
	if (model.n == 0 && tenant.n == 0)
		return CGN_OK;
	uint16_t *at = label_find(&s->labels, s->seed, model, tenant);
	if (*at == 0)
		CGN_TRY(label_add(s, at, model, tenant, err));
	s->labels.row[*at]->refs++;
	*out = *at;
	return CGN_OK;
}

CGN_RC kvstore_label_take(struct kvstore *s, struct cgn_str model, struct cgn_str tenant, uint16_t *out,
	struct cgn_err *err)
{
	(void)pthread_mutex_lock(&s->labels.lock);
	cgn_rc rc = label_take(s, model, tenant, out, err);
	if (rc.code == CGN_OVERLOADED && tenant.n > 0)
		rc = label_take(s, model, (struct cgn_str){0}, out, err);
	(void)pthread_mutex_unlock(&s->labels.lock);
	return rc;
}

void kvstore_label_give(struct kvstore *s, uint16_t id)
{
	struct kvstore_labels *m = &s->labels;
	if (id == 0)
		return;
	(void)pthread_mutex_lock(&m->lock);
	struct kvstore_label *row = m->row[id];
	if (--row->refs == 0) {
		*label_find(m, s->seed, label_model(row), label_tenant(row)) = row->next;
		m->row[id] = NULL;
		m->free[m->n_free++] = id;
		atomic_fetch_sub(&s->aside_bytes, label_bytes(row));
		free(row);
	}
	(void)pthread_mutex_unlock(&m->lock);
}

struct cgn_str kvstore_label_model(const struct kvstore *s, uint16_t id)
{
	return id == 0 ? (struct cgn_str){0} : label_model(s->labels.row[id]);
}

struct cgn_str kvstore_label_tenant(const struct kvstore *s, uint16_t id)
{
	return id == 0 ? (struct cgn_str){0} : label_tenant(s->labels.row[id]);
}

struct block_leave kvstore_label_leave(const struct kvstore *s, uint16_t id)
{
	return id == 0 ? (struct block_leave){0} : s->labels.row[id]->leave;
}
