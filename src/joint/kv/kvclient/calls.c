/* SPDX-License-Identifier: Apache-2.0 */
/* Calls: sends requests, and matches answers to calls. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/mman.h>

#include "base/sum/sum.h"
#include "joint/kv/kvclient/kvclient_priv.h"

#define PACKET_BITS 2
#define SLOT_BITS   10
#define SUM_AT_ONCE ((uint64_t)1 << 20)
#define MAX_QUEUED  ((size_t)7 << 20) /* the packets of one call go beyond it, into the connection's 8 MiB */

_Static_assert(KVCLIENT_CALL_PACKETS == 1 << PACKET_BITS && KVCLIENT_MAX_CALLS == 1 << SLOT_BITS, "ids");
_Static_assert(KVCLIENT_CALL_PACKETS *KVBULK_MAX_ITEMS >= KVCLIENT_MAX_KEYS, "a list of keys");

/* A checksum on the pool. The call and the job refer to each other; the one that ends first clears both
 * links. */
struct sum_job {
	struct kvclient_call *call; /* NULL: the call ended */
	struct kvclient_lease *lease;
	bool right;
};

/* ---- create and end ---- */
void kvclient_calls_init(struct kvclient *c)
{
	cgn_list_init(&c->calls);
	for (size_t i = 0; i < KVCLIENT_MAX_CALLS; i++)
		c->free_slots[i] = (uint16_t)i;
	c->n_free = KVCLIENT_MAX_CALLS;
}

static size_t slot_of(uint64_t id)
{
	return id >> PACKET_BITS & (KVCLIENT_MAX_CALLS - 1);
}

static void call_free(struct kvclient_call **take)
{
	struct kvclient_call *call = CGN_TAKE(take);
	if (call == NULL)
		return;
	struct kvclient *c = call->client;
	CGN_LIVE(call, KVCLIENT_CALL_TAG);
	cgn_list_drop(&call->link);
	c->slots[slot_of(call->id)] = NULL;
	c->free_slots[c->n_free++] = (uint16_t)slot_of(call->id);
	if (call->summing != NULL)
		call->summing->call = NULL;
	call->tag = 0;
	free(call->infos);
	free(call);
}

static CGN_RC call_new(struct kvclient *c, enum kvbulk_type type, kvclient_done_fn *done, void *user,
	struct kvclient_call **out, struct cgn_err *err)
{
	CGN_LIVE(c, KVCLIENT_TAG);
	if (!c->ready)
		return CGN_FAIL(err, UNAVAILABLE, "no block store at %s", c->path);
	if (c->n_free == 0)
		return CGN_FAIL(err, OVERLOADED, "%d calls of the block store are under way",
			KVCLIENT_MAX_CALLS);
	if (packet_queued(c->conn) > MAX_QUEUED)
		return CGN_FAIL(err, OVERLOADED, "the block store does not keep up with what is sent to it");
	struct kvclient_call *call = CGN_NEW(struct kvclient_call);
	size_t slot = c->free_slots[--c->n_free];
	*call = (struct kvclient_call){.tag = KVCLIENT_CALL_TAG,
		.client = c,
		.type = type,
		.done = done,
		.user = user};
	call->id = (++c->serial << SLOT_BITS | slot) << PACKET_BITS;
	call->deadline = cgn_loop_now(c->loop) + c->timeout;
	c->slots[slot] = call;
	cgn_list_push(&c->calls, &call->link);
	if (c->deadline.at == 0)
		cgn_timer_set(&c->deadline, c->timeout);
	*out = call;
	return CGN_OK;
}

static void call_end(struct kvclient_call **take, const struct kvclient_answer *a)
{
	kvclient_done_fn *done = (*take)->done;
	void *user = (*take)->user;
	struct block_info *infos = (*take)->infos; /* The answer borrows the infos. */
	(*take)->infos = NULL;
	call_free(take);
	done(user, a);
	free(infos);
}

static void call_fail(struct kvclient_call **take, const struct cgn_err *why)
{
	call_end(take, &(struct kvclient_answer){.err = why});
}

void kvclient_call_cancel(struct kvclient_call **take)
{
	call_free(take); /* A later answer finds no call, and its lease is returned. */
}

void kvclient_calls_fail(struct kvclient *c, const struct cgn_err *why)
{
	struct cgn_link *l;
	while ((l = cgn_list_first(&c->calls)) != NULL) {
		struct kvclient_call *call = CGN_CONTAINER(l, struct kvclient_call, link);
		call_fail(&call, why);
	}
}

void kvclient_calls_forget(struct kvclient *c)
{
	cgn_list_each_safe (it, &c->calls) {
		struct kvclient_call *call = CGN_CONTAINER(it, struct kvclient_call, link);
		call_free(&call);
	}
}

void kvclient_calls_on_deadline(struct cgn_timer *t)
{
	struct kvclient *c = CGN_CONTAINER(t, struct kvclient, deadline);
	struct cgn_link *l;
	struct cgn_err why;
	cgn_nsec now = cgn_loop_now(c->loop);
	(void)CGN_FAIL(&why, DEADLINE, "the block store did not answer in time");
	while ((l = cgn_list_first(&c->calls)) != NULL) {
		struct kvclient_call *call = CGN_CONTAINER(l, struct kvclient_call, link);
		if (call->deadline > now) {
			cgn_timer_set(t, call->deadline - now);
			return;
		}
		call_fail(&call, &why);
	}
}

/* ---- requests ---- */
static CGN_RC tenant_check(struct cgn_str tenant, struct cgn_err *err)
{
	return tenant.n <= BLOCK_MAX_TENANT
		? CGN_OK
		: CGN_FAIL(err, INVALID, "a tenant of %zu bytes: at most %d", tenant.n, BLOCK_MAX_TENANT);
}

/* Say for whom |m| is, if it is known and the store understands it. */
static void tenant_tell(const struct kvclient *c, struct kvbulk_msg *m, struct cgn_str tenant)
{
	if (tenant.n == 0 || c->version < 2)
		return;
	m->flags |= KVBULK_TENANT;
	m->tenant = tenant;
}

static CGN_RC keys_call(struct kvclient *c, enum kvbulk_type type, const struct block_key *keys, size_t n,
	bool peers, struct cgn_str tenant, kvclient_done_fn *done, void *user, struct kvclient_call **out,
	struct cgn_err *err)
{
	struct kvclient_call *call = NULL;
	if (n == 0 || n > KVCLIENT_MAX_KEYS)
		return CGN_FAIL(err, INVALID, "%zu keys in a call of the block store: 1 to %d", n,
			KVCLIENT_MAX_KEYS);
	CGN_TRY(tenant_check(tenant, err));
	CGN_TRY(call_new(c, type, done, user, &call, err));
	call->infos = type == KVBULK_LOOKUP ? CGN_NEW_ARRAY(struct block_info, n) : NULL;
	call->n_infos = n;
	kvclient_leases_flush(c);
	for (size_t at = 0, packet = 0; at < n; packet++) {
		size_t count = n - at < KVBULK_MAX_ITEMS ? n - at : KVBULK_MAX_ITEMS;
		struct kvbulk_msg m = {.type = type,
			.flags = peers ? KVBULK_PEERS : 0,
			.count = (uint16_t)count,
			.id = call->id + packet};
		tenant_tell(c, &m, tenant);
		struct cgn_buf *b = kvclient_message(c, &m);
		for (size_t end = at + count; at < end; at++)
			kvbulk_add_key(b, &keys[at]);
		call->unanswered |= 1U << packet;
		kvclient_send(c, -1);
	}
	if (out != NULL)
		*out = call;
	return CGN_OK;
}

CGN_RC kvclient_lookup(struct kvclient *c, const struct block_key *keys, size_t n, bool peers,
	struct cgn_str tenant, kvclient_done_fn *done, void *user, struct kvclient_call **out,
	struct cgn_err *err)
{
	return keys_call(c, KVBULK_LOOKUP, keys, n, peers, tenant, done, user, out, err);
}

CGN_RC kvclient_remove(struct kvclient *c, const struct block_key *keys, size_t n, kvclient_done_fn *done,
	void *user, struct kvclient_call **out, struct cgn_err *err)
{
	return keys_call(c, KVBULK_REMOVE, keys, n, false, (struct cgn_str){0}, done, user, out, err);
}

/* Send |m| as the next packet of |call|, with its id. */
static void call_send_packet(struct kvclient_call *call, struct kvbulk_msg *m, int fd)
{
	m->id = call->id;
	call->unanswered = 1;
	kvclient_leases_flush(call->client);
	(void)kvclient_message(call->client, m);
	kvclient_send(call->client, fd);
}

/* Released leases travel with the request, which saves a packet. */
static void call_send_get(struct kvclient_call *call)
{
	struct kvclient *c = call->client;
	struct kvbulk_msg m = {.type = KVBULK_GET,
		.key = call->key,
		.id = call->id,
		.count = (uint16_t)c->n_back,
		.flags = (uint8_t)((call->worth_ms != KVCLIENT_HERE_ONLY ? KVBULK_PEERS : 0) |
			(call->again ? KVBULK_VERIFY : 0)),
		.budget_ms = call->worth_ms != KVCLIENT_WHATEVER ? call->worth_ms : 0};
	call->unanswered = 1;
	tenant_tell(c, &m, (struct cgn_str){call->tenant, call->n_tenant});
	kvclient_leases_add(c, kvclient_message(c, &m));
	kvclient_send(c, -1);
}

CGN_RC kvclient_get(struct kvclient *c, const struct block_key *key, uint32_t worth_ms, struct cgn_str tenant,
	kvclient_done_fn *done, void *user, struct kvclient_call **out, struct cgn_err *err)
{
	struct kvclient_call *call = NULL;
	CGN_TRY(tenant_check(tenant, err));
	CGN_TRY(call_new(c, KVBULK_GET, done, user, &call, err));
	call->key = *key;
	call->worth_ms = worth_ms;
	call->n_tenant = tenant.n;
	if (tenant.n > 0)
		memcpy(call->tenant, tenant.p, tenant.n);
	call_send_get(call);
	if (out != NULL)
		*out = call;
	return CGN_OK;
}

/* ---- put ---- */
static uint64_t source_bytes(const struct kvclient_source *from)
{
	uint64_t bytes = from->iov == NULL ? from->length : 0;
	for (size_t i = 0; from->iov != NULL && i < from->n_iov; i++)
		bytes += from->iov[i].iov_len;
	return bytes;
}

/* Write the pieces to a file in memory. */
static CGN_RC source_file(const struct kvclient_source *from, int *out, struct cgn_err *err)
{
	int fd = memfd_create("cgn-kv-put", MFD_CLOEXEC);
	if (fd < 0)
		return CGN_FAIL(err, OVERLOADED, "no descriptor for a value: %s", strerror(errno));
	for (size_t i = 0; i < from->n_iov; i++)
		for (size_t at = 0; at < from->iov[i].iov_len;) {
			ssize_t n = write(fd, (const char *)from->iov[i].iov_base + at,
				from->iov[i].iov_len - at);
			if (n <= 0) {
				close(fd);
				return CGN_FAIL(err, NO_MEMORY, "no memory to hand a value over");
			}
			at += (size_t)n;
		}
	*out = fd;
	return CGN_OK;
}

static CGN_RC put_inline(struct kvclient_call *call, struct kvbulk_msg *m, const struct kvclient_source *from)
{
	char value[KVBULK_MAX_INLINE];
	size_t n = 0;
	for (size_t i = 0; i < from->n_iov; n += from->iov[i++].iov_len)
		if (from->iov[i].iov_len > 0)
			memcpy(value + n, from->iov[i].iov_base, from->iov[i].iov_len);
	m->text = (struct cgn_str){value, n};
	call_send_packet(call, m, -1);
	return CGN_OK;
}

static CGN_RC put_file(struct kvclient_call *call, struct kvbulk_msg *m, const struct kvclient_source *from,
	struct cgn_err *err)
{
	int made = -1;
	m->flags |= KVBULK_FILE;
	m->offset = from->iov == NULL ? from->offset : 0;
	if (from->iov != NULL)
		CGN_TRY(source_file(from, &made, err));
	call_send_packet(call, m, from->iov == NULL ? from->fd : made);
	if (made >= 0)
		close(made); /* the packet has a copy of the descriptor */
	return CGN_OK;
}

static CGN_RC put_check(const struct block_meta *meta, uint64_t size, struct cgn_err *err)
{
	CGN_TRY(tenant_check(meta->tenant, err));
	if (meta->model.n > BLOCK_MAX_MODEL || meta->name.n > BLOCK_MAX_NAME)
		return CGN_FAIL(err, INVALID,
			"a model of %zu bytes (at most %d) or a name of %zu (at most %d)", meta->model.n,
			BLOCK_MAX_MODEL, meta->name.n, BLOCK_MAX_NAME);
	if (size > BLOCK_MAX_BYTES)
		return CGN_FAIL(err, INVALID, "a value of %llu bytes: at most %llu", (unsigned long long)size,
			(unsigned long long)BLOCK_MAX_BYTES);
	return CGN_OK;
}

CGN_RC kvclient_put(struct kvclient *c, const struct block_key *key, const struct block_meta *meta,
	const struct kvclient_source *from, bool only_if_absent, kvclient_done_fn *done, void *user,
	struct kvclient_call **out, struct cgn_err *err)
{
	struct kvclient_call *call = NULL;
	uint64_t size = source_bytes(from);
	CGN_TRY(put_check(meta, size, err));
	CGN_TRY(call_new(c, KVBULK_PUT, done, user, &call, err));
	struct kvbulk_msg m = {.type = KVBULK_PUT,
		.key = *key,
		.model = meta->model,
		.name = meta->name,
		.flags = only_if_absent ? KVBULK_IF_ABSENT : 0,
		.info = {.size = size,
			.tokens = meta->tokens,
			.created_unix_ms = meta->created_unix_ms,
			.expires_unix_ms = meta->expires_unix_ms}};
	tenant_tell(c, &m, meta->tenant);
	if (from->checksum != NULL)
		m.info.checksum = *from->checksum;
	else if (from->iov != NULL)
		m.info.checksum = sum64_pieces(from->iov, from->n_iov);
	if (from->checksum != NULL || from->iov != NULL)
		m.flags |= KVBULK_CHECKSUM;
	bool fits = from->iov != NULL && size <= c->terms.max_inline && size <= KVBULK_MAX_INLINE;
	cgn_rc rc = fits ? put_inline(call, &m, from) : put_file(call, &m, from, err);
	if (!cgn_ok(rc))
		call_free(&call);
	else if (out != NULL)
		*out = call;
	return rc;
}

/* ---- answers ---- */
static void call_protocol_error(struct kvclient *c, const char *what)
{
	struct cgn_err why;
	(void)CGN_FAIL(&why, UNAVAILABLE, "the block store at %s answers nonsense: %s", c->path, what);
	kvclient_lose(c, &why);
}

static void got_infos(struct kvclient_call *call, const struct kvbulk_msg *m)
{
	static const struct cgn_err fine = {.code = CGN_FINE};
	struct kvclient *c = call->client;
	size_t first = (m->id & (KVCLIENT_CALL_PACKETS - 1)) * KVBULK_MAX_ITEMS;
	size_t expected = call->type != KVBULK_LOOKUP      ? 1
		: call->n_infos - first < KVBULK_MAX_ITEMS ? call->n_infos - first
							   : KVBULK_MAX_ITEMS;
	if (m->count != expected || call->type == KVBULK_GET || call->type == KVBULK_REMOVE) {
		call_protocol_error(c, "so many infos");
		return;
	}
	if (call->type != KVBULK_LOOKUP) {
		const struct block_info info = kvbulk_info(m, 0);
		call_end(&call, &(struct kvclient_answer){.err = &fine, .infos = &info, .n = 1});
		return;
	}
	for (size_t i = 0; i < m->count; i++)
		call->infos[first + i] = kvbulk_info(m, i);
	if (call->unanswered == 0)
		call_end(&call,
			&(struct kvclient_answer){.err = &fine, .infos = call->infos, .n = call->n_infos});
}

static void got_count(struct kvclient_call *call, const struct kvbulk_msg *m)
{
	static const struct cgn_err fine = {.code = CGN_FINE};
	call->removed += m->number;
	if (call->type != KVBULK_REMOVE)
		call_protocol_error(call->client, "a count");
	else if (call->unanswered == 0)
		call_end(&call, &(struct kvclient_answer){.err = &fine, .removed = call->removed});
}

/* The sum is known: hand out the lease, or request the value again with the store's own check. */
static void call_on_sum(struct kvclient_call *call, struct kvclient_lease *l, bool right)
{
	static const struct cgn_err fine = {.code = CGN_FINE};
	struct cgn_err err;
	if (right) {
		call_end(&call, &(struct kvclient_answer){.err = &fine, .lease = l});
		return;
	}
	kvclient_lease_release(&l);
	if (!call->again) {
		call->again = true;
		call_send_get(call);
		return;
	}
	(void)CGN_FAIL(&err, STORAGE, "the value is not what its checksum says, though the store says so");
	call_fail(&call, &err);
}

static bool is_right(const struct kvclient_lease *l)
{
	return sum64_pieces(l->iov, l->n_iov) == l->info.checksum;
}

static void sum_on_pool(void *arg)
{
	struct sum_job *j = arg;
	j->right = is_right(j->lease);
}

static void sum_done(void *arg)
{
	struct sum_job *j = arg;
	if (j->call == NULL) {
		kvclient_lease_release(&j->lease);
	} else {
		j->call->summing = NULL;
		call_on_sum(j->call, j->lease, j->right);
	}
	free(j);
}

static void call_sum(struct kvclient_call *call, struct kvclient_lease *l)
{
	if (l->info.size <= SUM_AT_ONCE) {
		call_on_sum(call, l, is_right(l));
		return;
	}
	struct sum_job *j = CGN_NEW(struct sum_job);
	*j = (struct sum_job){.call = call, .lease = l};
	call->summing = j;
	cgn_loop_work(call->client->loop, sum_on_pool, sum_done, j);
}

static void got_value(struct kvclient_call *call, const struct kvbulk_msg *m, int fd)
{
	struct kvclient *c = call->client;
	struct kvclient_lease *l = NULL;
	struct cgn_err err = {0};
	if (call->type != KVBULK_GET) {
		call_protocol_error(c, "a value");
		return;
	}
	cgn_rc rc = kvclient_lease_new(c, m, fd, &l, &err);
	if (cgn_ok(rc)) {
		call_sum(call, l);
		return;
	}
	kvclient_lease_return(c, m->lease);
	call_fail(&call, &err);
}

static void got_failure(struct kvclient_call *call, const struct kvbulk_msg *m)
{
	struct cgn_err why;
	enum cgn_code code = cgn_code_from_grpc((int)(m->number & 31));
	(void)CGN_FAIL_AS(&why, code != CGN_FINE ? code : CGN_INTERNAL, "%.*s", CGN_STR_ARG(m->text));
	call_fail(&call, &why);
}

void kvclient_calls_answer(struct kvclient *c, const struct kvbulk_msg *m, int fd)
{
	struct kvclient_call *call = c->slots[slot_of(m->id)];
	unsigned packet = 1U << (m->id & (KVCLIENT_CALL_PACKETS - 1));
	if (call == NULL || call->id != (m->id & ~(uint64_t)(KVCLIENT_CALL_PACKETS - 1)) ||
		(call->unanswered & packet) == 0) {
		if (m->type == KVBULK_VALUE)
			kvclient_lease_return(c, m->lease); /* the call was cancelled, or timed out */
		return;
	}
	call->unanswered &= ~packet;
	if (m->type == KVBULK_INFOS)
		got_infos(call, m);
	else if (m->type == KVBULK_COUNT)
		got_count(call, m);
	else if (m->type == KVBULK_VALUE)
		got_value(call, m, fd);
	else
		got_failure(call, m);
}
