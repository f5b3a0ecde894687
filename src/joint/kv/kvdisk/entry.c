/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of the index, under the stripe of the key, and the clock that they are measured by. */
#include "joint/kv/kvdisk/kvdisk_priv.h"

#include <string.h>

struct entry_wanted {
	const struct block_key *key;
	struct record *out;
	char *names;
	bool found;
};

uint64_t kvdisk_clock(const struct kvdisk *d)
{
	return d->time.base + (d->time.boot_ms() - d->time.from);
}

pthread_mutex_t *kvdisk_stripe(struct kvdisk *d, const struct block_key *k)
{
	return &d->stripes[(digest_short(&k->digest) ^ k->segment) % KVDISK_STRIPES];
}

bool entry_had_its_time(const struct kvdisk *d, const struct record *r)
{
	return d->ttl_ms > 0 && r->stored_ms + d->ttl_ms <= kvdisk_clock(d);
}

struct block_meta record_keep_names(const struct block_meta *m, char names[KVDISK_NAMES])
{
	struct block_meta kept = *m;
	memcpy(names, m->model.p, m->model.n);
	memcpy(names + m->model.n, m->name.p, m->name.n);
	memcpy(names + m->model.n + m->name.n, m->tenant.p, m->tenant.n);
	kept.model.p = names;
	kept.name.p = names + m->model.n;
	kept.tenant.p = kept.name.p + m->name.n;
	return kept;
}

static void entry_on_row(void *user, const uint8_t *v, size_t n)
{
	struct entry_wanted *w = user;
	w->found = index_read(w->key, v, n, w->out);
	if (w->found)
		w->out->entry.meta = record_keep_names(&w->out->entry.meta, w->names);
}

CGN_RC entry_get(struct kvdisk *d, const struct block_key *k, struct record *out, char names[KVDISK_NAMES])
{
	uint8_t key[INDEX_KEY];
	struct entry_wanted w = {k, out, names, false};
	index_key_write(k, key);
	cgn_rc rc = db_get(d->index, key, sizeof key, entry_on_row, &w, NULL);
	if (!cgn_ok(rc) && rc.code != CGN_NOT_FOUND && rc.code != CGN_INVALID)
		return CGN_RC_OF(CGN_UNAVAILABLE);
	out->store = d->store;
	return CGN_RC_OF(cgn_ok(rc) && w.found ? CGN_FINE : CGN_NOT_FOUND);
}

CGN_RC entry_put(struct kvdisk *d, const struct record *r, struct cgn_err *err)
{
	uint8_t key[INDEX_KEY], value[INDEX_MAX];
	index_key_write(&r->entry.key, key);
	size_t n = index_write(r, value);
	atomic_store(&d->dirty, true);
	atomic_fetch_add(&d->counts.written, sizeof key + n);
	return kvdisk_as_storage(db_put(d->index, key, sizeof key, value, n, err), err);
}

bool entry_drop(struct kvdisk *d, const struct block_key *k, kvdisk_place at)
{
	uint8_t key[INDEX_KEY];
	index_key_write(k, key);
	bool done = cgn_ok(db_delete(d->index, key, sizeof key, NULL));
	atomic_store(&d->dirty, true);
	if (done)
		file_count(d, at, -1);
	return done;
}

bool entry_remove_before(struct kvdisk *d, const struct block_key *k, uint64_t seq)
{
	char names[KVDISK_NAMES];
	struct record is;
	pthread_mutex_t *stripe = kvdisk_stripe(d, k);
	(void)pthread_mutex_lock(stripe);
	cgn_rc rc = entry_get(d, k, &is, names);
	bool had = cgn_ok(rc) && is.seq < seq,
	     done = !had && rc.code != CGN_UNAVAILABLE && !db_stuck(d->index);
	if (had) {
		log_unwrite(d, is.entry.place);
		done = entry_drop(d, k, is.entry.place);
	}
	if (!done)
		removal_add(d, k, seq);
	(void)pthread_mutex_unlock(stripe);
	return had;
}
