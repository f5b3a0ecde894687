/* SPDX-License-Identifier: Apache-2.0 */
/* bulk, put: a value from a message, or from a file of the client. The file is read with pread, never mapped:
 * the client could truncate it, and a mapped read would then be a SIGBUS. Small files in memory are read at
 * once, others on the pool. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "kvcached/bulk/bulk_priv.h"

#define AT_ONCE ((uint64_t)256 * 1024)
#define PIECES  64

struct put {
	struct bulk_call call;
	struct kvcached *daemon;
	struct block_key key;
	struct block_info info; /* size, and the checksum when |checked| */
	bool checked, if_absent;
	int fd;
	uint64_t offset;
	char model[BLOCK_MAX_MODEL], name[BLOCK_MAX_NAME], tenant[BLOCK_MAX_TENANT];
	struct block_meta meta; /* texts lie in the buffers above */
	struct cgn_err err;
};

static struct block_meta meta_of(const struct kvbulk_msg *m)
{
	return (struct block_meta){.model = m->model,
		.name = m->name,
		.tenant = m->tenant,
		.tokens = m->info.tokens,
		.created_unix_ms =
			m->info.created_unix_ms != 0 ? m->info.created_unix_ms : cgn_clock_wall_ms(),
		.expires_unix_ms = m->info.expires_unix_ms};
}

static void put_done(struct bulk_client *c, uint64_t id, const struct block_key *key,
	const struct cgn_err *err)
{
	struct block_info info;
	if (err->code != CGN_FINE) {
		bulk_fail(c, id, err);
		return;
	}
	/* the value may be gone already: then tiers is 0 */
	(void)kvstore_lookup(c->bulk->w->daemon->store, key, &info);
	bulk_send_info(c, id, &info);
}

/* ---- in the message ---- */
static CGN_RC put_bytes(struct kvcached *d, const struct kvbulk_msg *m, struct cgn_err *err)
{
	const struct block_meta meta = meta_of(m);
	CGN_ON_EXIT(kvstore_writer_abort) struct kvstore_writer *w = NULL;
	CGN_TRY(kvstore_put(d->store, &m->key, &meta, m->info.size, &w, err));
	kvstore_writer_add(w, m->text.p, m->text.n);
	return kvstore_writer_commit(&w, (m->flags & KVBULK_CHECKSUM) != 0 ? &m->info.checksum : NULL,
		(m->flags & KVBULK_IF_ABSENT) != 0 ? KVSTORE_IF_ABSENT : 0, err);
}

/* ---- in a file ---- */
static CGN_RC put_fill(struct kvstore_writer *w, const struct put *p, struct cgn_err *err)
{
	struct iovec iov[PIECES];
	size_t n;
	while (kvstore_writer_missing(w) > 0) {
		uint64_t at = p->info.size - kvstore_writer_missing(w);
		(void)kvstore_writer_room(w, iov, PIECES, &n);
		ssize_t got = preadv(p->fd, iov, (int)n, (off_t)(p->offset + at));
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return CGN_FAIL(err, INVALID, "the descriptor cannot be read: %s", strerror(errno));
		if (got == 0)
			return CGN_FAIL(err, INVALID, "the file ends at %llu of %llu bytes",
				(unsigned long long)at, (unsigned long long)p->info.size);
		kvstore_writer_wrote(w, (uint64_t)got);
	}
	return CGN_OK;
}

static CGN_RC put_file(struct put *p, struct cgn_err *err)
{
	CGN_ON_EXIT(kvstore_writer_abort) struct kvstore_writer *w = NULL;
	CGN_TRY(kvstore_put(p->daemon->store, &p->key, &p->meta, p->info.size, &w, err));
	CGN_TRY(put_fill(w, p, err));
	return kvstore_writer_commit(&w, p->checked ? &p->info.checksum : NULL,
		p->if_absent ? KVSTORE_IF_ABSENT : 0, err);
}

static void put_free(struct put *p)
{
	close(p->fd);
	free(p);
}

static void on_pool(void *arg)
{
	struct put *p = arg;
	if (!cgn_ok(put_file(p, &p->err)))
		CGN_MUST(p->err.code != CGN_FINE);
}

static void on_done(void *arg)
{
	struct put *p = arg;
	value_unhold(p->daemon, p->info.size);
	if (p->call.client != NULL)
		put_done(p->call.client, p->call.id, &p->key, &p->err);
	bulk_call_end(&p->call);
	put_free(p);
}

/* Refuse files that pread does not support (pipes, sockets, terminals), by their type. */
static CGN_RC check_file(int fd, const struct kvbulk_msg *m, bool *in_memory, struct cgn_err *err)
{
	struct stat st;
	struct statfs fs;
	if (fd < 0)
		return CGN_FAIL(err, INVALID, "PUT says that a descriptor comes along, but none did");
	if (fstat(fd, &st) != 0 || fstatfs(fd, &fs) != 0)
		return CGN_FAIL(err, INVALID, "the descriptor cannot be looked at: %s", strerror(errno));
	if (!S_ISREG(st.st_mode))
		return CGN_FAIL(err, INVALID,
			"the descriptor is of no regular file, such as memfd_create or open give");
	if (m->info.size > BLOCK_MAX_BYTES)
		return CGN_FAIL(err, TOO_LARGE, "a value of %llu bytes: at most %llu",
			(unsigned long long)m->info.size, (unsigned long long)BLOCK_MAX_BYTES);
	if (m->offset > (uint64_t)st.st_size || m->info.size > (uint64_t)st.st_size - m->offset)
		return CGN_FAIL(err, INVALID, "the file has %llu bytes: no %llu from %llu on",
			(unsigned long long)st.st_size, (unsigned long long)m->info.size,
			(unsigned long long)m->offset);
	*in_memory = (unsigned long)fs.f_type == TMPFS_MAGIC || (unsigned long)fs.f_type == HUGETLBFS_MAGIC;
	return CGN_OK;
}

/* Takes over |*fd|. */
static struct put *put_new(struct bulk_client *c, const struct kvbulk_msg *m, int *fd)
{
	struct put *p = CGN_NEW(struct put);
	*p = (struct put){.daemon = c->bulk->w->daemon,
		.key = m->key,
		.info = m->info,
		.checked = (m->flags & KVBULK_CHECKSUM) != 0,
		.if_absent = (m->flags & KVBULK_IF_ABSENT) != 0,
		.fd = *fd,
		.offset = m->offset,
		.meta = meta_of(m)};
	*fd = -1;
	if (m->model.n > 0)
		memcpy(p->model, m->model.p, m->model.n);
	if (m->name.n > 0)
		memcpy(p->name, m->name.p, m->name.n);
	if (m->tenant.n > 0)
		memcpy(p->tenant, m->tenant.p, m->tenant.n);
	p->meta.tenant.p = p->tenant;
	p->meta.model.p = p->model;
	p->meta.name.p = p->name;
	return p;
}

static CGN_RC put_start(struct bulk_client *c, struct put *p, uint64_t id, bool at_once, struct cgn_err *err)
{
	if (!value_hold(p->daemon, p->info.size))
		return CGN_FAIL(err, OVERLOADED, "half of the RAM tier is being read or written by clients");
	bulk_call_begin(c, &p->call, BULK_PUT, id);
	if (at_once) {
		on_pool(p);
		on_done(p);
	} else {
		cgn_loop_work(c->bulk->w->loop, on_pool, on_done, p);
	}
	return CGN_OK;
}

static CGN_RC put_from_file(struct bulk_client *c, const struct kvbulk_msg *m, int *fd, struct cgn_err *err)
{
	bool in_memory = false;
	CGN_TRY(check_file(*fd, m, &in_memory, err));
	struct put *p = put_new(c, m, fd);
	cgn_rc rc = put_start(c, p, m->id, in_memory && m->info.size <= AT_ONCE, err);
	if (!cgn_ok(rc))
		put_free(p);
	return rc;
}

void bulk_put(struct bulk_client *c, const struct kvbulk_msg *m, int *fd)
{
	struct cgn_err err = {0};
	if ((m->flags & KVBULK_FILE) == 0) {
		(void)!cgn_ok(put_bytes(c->bulk->w->daemon, m, &err));
		put_done(c, m->id, &m->key, &err);
	} else if (!cgn_ok(put_from_file(c, m, fd, &err))) {
		bulk_fail(c, m->id, &err);
	}
}
