/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: pieces of the store's memory, and their return to the store. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>
#include <sys/stat.h>

#include "joint/kv/kvclient/kvclient_priv.h"

/* ---- maps ---- */
/* The size is sealed, so a read in the map cannot be a SIGBUS. */
CGN_RC kvclient_map_new(int fd, uint64_t bytes, struct kvclient_map **out, struct cgn_err *err)
{
	struct stat st;
	if (fd < 0 || bytes == 0 || fstat(fd, &st) != 0 || (uint64_t)st.st_size < bytes)
		return CGN_FAIL(err, BAD_GATEWAY, "the store handed over no memory of %llu bytes",
			(unsigned long long)bytes);
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
		return CGN_FAIL(err, BAD_GATEWAY, "the store handed over memory that it could take away");
	void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return CGN_FAIL(err, NO_MEMORY, "cannot map %llu bytes of the store: %s",
			(unsigned long long)bytes, strerror(errno));
	struct kvclient_map *m = CGN_NEW(struct kvclient_map);
	*m = (struct kvclient_map){.tag = KVCLIENT_MAP_TAG, .refs = 1, .p = p, .bytes = bytes};
	*out = m;
	return CGN_OK;
}

void kvclient_map_unref(struct kvclient_map **take)
{
	struct kvclient_map *m = CGN_TAKE_LIVE(take, KVCLIENT_MAP_TAG);
	if (m == NULL)
		return;
	if (--m->refs > 0)
		return;
	void *p;
	memcpy(&p, &m->p, sizeof p); /* the map is read-only, munmap takes a mutable pointer */
	(void)munmap(p, m->bytes);
	m->tag = 0;
	free(m);
}

/* ---- leases ---- */
static CGN_RC lease_pieces(struct kvclient_lease *l, const struct kvbulk_msg *m, struct cgn_err *err)
{
	for (size_t i = 0; i < m->count; i++) {
		struct kvbulk_extent e = kvbulk_extent(m, i);
		if (e.offset > l->map->bytes || e.length > l->map->bytes - e.offset)
			return CGN_FAIL(err, BAD_GATEWAY,
				"the store says that a value lies outside of its memory");
		const uint8_t *at = l->map->p + e.offset;
		memcpy(&l->iov[i].iov_base, &at, sizeof at);
		l->iov[i].iov_len = e.length;
	}
	return CGN_OK;
}

static void lease_free(struct kvclient_lease **take)
{
	struct kvclient_lease *l = CGN_TAKE(take);
	if (l == NULL)
		return;
	cgn_list_drop(&l->link);
	kvclient_map_unref(&l->map);
	l->tag = 0;
	free(l);
}

static CGN_RC lease_map(struct kvclient *c, const struct kvbulk_msg *m, int fd, struct kvclient_map **out,
	struct cgn_err *err)
{
	if (m->count == 0)
		return CGN_OK;
	if ((m->flags & KVBULK_OWN) != 0)
		return kvclient_map_new(fd, m->info.size, out, err);
	if (c->map == NULL)
		return CGN_FAIL(err, BAD_GATEWAY, "the store speaks of memory that it did not hand over");
	c->map->refs++;
	*out = c->map;
	return CGN_OK;
}

CGN_RC kvclient_lease_new(struct kvclient *c, const struct kvbulk_msg *m, int fd, struct kvclient_lease **out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(lease_free)
	struct kvclient_lease *l = cgn_zeroed(1, sizeof *l + m->count * sizeof *l->iov, CGN_HERE);
	*l = (struct kvclient_lease){.tag = KVCLIENT_LEASE_TAG,
		.loop = c->loop,
		.client = c,
		.id = m->lease,
		.until = cgn_loop_now(c->loop) + c->terms.lease_ms * CGN_MSEC,
		.info = m->info,
		.n_iov = m->count};
	cgn_list_init(&l->link);
	CGN_TRY(lease_map(c, m, fd, &l->map, err));
	CGN_TRY(lease_pieces(l, m, err));
	cgn_list_push(&c->leases, &l->link);
	*out = CGN_TAKE(&l);
	return CGN_OK;
}

const struct iovec *kvclient_lease_iov(const struct kvclient_lease *l, size_t *n)
{
	CGN_LIVE(l, KVCLIENT_LEASE_TAG);
	*n = l->n_iov;
	return l->iov;
}

const struct block_info *kvclient_lease_info(const struct kvclient_lease *l)
{
	CGN_LIVE(l, KVCLIENT_LEASE_TAG);
	return &l->info;
}

bool kvclient_lease_is_stale(const struct kvclient_lease *l)
{
	CGN_LIVE(l, KVCLIENT_LEASE_TAG);
	return l->client == NULL || cgn_loop_now(l->loop) >= l->until;
}

/* ---- return ---- */
void kvclient_leases_flush(struct kvclient *c)
{
	const struct kvbulk_msg m = {.type = KVBULK_RELEASE, .count = (uint16_t)c->n_back};
	if (c->n_back == 0 || c->conn == NULL)
		return;
	kvclient_leases_add(c, kvclient_message(c, &m));
	kvclient_send(c, -1);
}

void kvclient_leases_add(struct kvclient *c, struct cgn_buf *out)
{
	for (size_t i = 0; i < c->n_back; i++)
		kvbulk_add_lease(out, c->back[i]);
	c->n_back = 0;
}

void kvclient_leases_on_turn_end(struct cgn_hook *h)
{
	kvclient_leases_flush(CGN_CONTAINER(h, struct kvclient, give_back));
}

void kvclient_lease_return(struct kvclient *c, uint64_t lease)
{
	if (c->n_back == KVCLIENT_MAX_RETURNS)
		kvclient_leases_flush(c);
	c->back[c->n_back++] = lease;
	cgn_loop_defer(c->loop, &c->give_back);
}

void kvclient_lease_release(struct kvclient_lease **take)
{
	if (*take == NULL)
		return;
	CGN_LIVE(*take, KVCLIENT_LEASE_TAG);
	if ((*take)->client != NULL)
		kvclient_lease_return((*take)->client, (*take)->id);
	lease_free(take);
}

void kvclient_leases_orphan(struct kvclient *c)
{
	cgn_list_each_safe (it, &c->leases) {
		CGN_CONTAINER(it, struct kvclient_lease, link)->client = NULL;
		cgn_list_drop(it);
	}
	c->n_back = 0;
}
