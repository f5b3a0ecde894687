/* SPDX-License-Identifier: Apache-2.0 */
/* bulk, leases: a block that a client reads stays in place until the client releases it, disconnects, or
 * exceeds the lease timeout. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/mman.h>

#include "kvcached/bulk/bulk_priv.h"

#define SLOT_BITS 16

/* ---- slots ---- */
static bool slot_find(struct bulk_client *c, size_t *out)
{
	for (size_t i = 0; i < c->n_slots; i++)
		if (c->slots[(c->lease_serial + i) % c->n_slots] == NULL) {
			*out = (c->lease_serial + i) % c->n_slots;
			return true;
		}
	size_t n = c->n_slots > 0 ? 2 * c->n_slots : 8;
	if (n > BULK_MAX_LEASES)
		return false;
	c->slots = CGN_GROWN(c->slots, n);
	memset(c->slots + c->n_slots, 0, (n - c->n_slots) * sizeof *c->slots);
	*out = c->n_slots;
	c->n_slots = n;
	return true;
}

static struct bulk_lease **slot_of(struct bulk_client *c, uint64_t id)
{
	size_t at = id & ((1U << SLOT_BITS) - 1);
	return at < c->n_slots && c->slots[at] != NULL && c->slots[at]->id == id ? &c->slots[at] : NULL;
}

static void let_go(struct bulk_client *c, struct bulk_lease **slot)
{
	struct bulk_lease *l = CGN_TAKE(slot);
	cgn_list_drop(&l->link);
	c->n_leases--;
	c->lease_bytes -= l->bytes;
	value_unhold(c->bulk->w->daemon, l->bytes);
	kvstore_block_unref(&l->block);
	free(l);
}

void bulk_release(struct bulk_client *c, uint64_t id)
{
	struct bulk_lease **slot = slot_of(c, id);
	if (slot != NULL)
		let_go(c, slot);
}

void bulk_release_all(struct bulk_client *c)
{
	for (size_t i = 0; i < c->n_slots; i++)
		if (c->slots[i] != NULL)
			let_go(c, &c->slots[i]);
}

bool bulk_is_overdue(struct bulk_client *c, cgn_nsec now)
{
	struct cgn_link *oldest = cgn_list_first(&c->leases);
	return oldest != NULL && CGN_CONTAINER(oldest, struct bulk_lease, link)->until < now;
}

/* ---- lending ---- */
static CGN_RC lease_new(struct bulk_client *c, struct kvstore_block **take, struct bulk_lease **out,
	struct cgn_err *err)
{
	struct bulk *b = c->bulk;
	uint64_t bytes = kvstore_block_size(*take);
	size_t slot;
	if (c->n_leases > 0 && c->lease_bytes + bytes > b->client_bytes)
		return CGN_FAIL(err, OVERLOADED,
			"%zu values of %llu bytes are lent to this client: release some first", c->n_leases,
			(unsigned long long)c->lease_bytes);
	if (!slot_find(c, &slot))
		return CGN_FAIL(err, OVERLOADED,
			"%zu values are lent to this client, as many as may be: release some first",
			c->n_leases);
	struct bulk_lease *l = CGN_NEW(struct bulk_lease);
	if (!value_hold(b->w->daemon, bytes)) {
		free(l);
		return CGN_FAIL(err, OVERLOADED, "half of the RAM tier is being read or written by clients");
	}
	*l = (struct bulk_lease){.id = ++c->lease_serial << SLOT_BITS | slot,
		.bytes = bytes,
		.until = cgn_loop_now(b->w->loop) + b->lease_timeout,
		.block = *take};
	*take = NULL;
	cgn_list_push(&c->leases, &l->link);
	c->slots[slot] = l;
	c->n_leases++;
	c->lease_bytes += bytes;
	*out = l;
	return CGN_OK;
}

/* Copy the value to a descriptor of its own, as this kernel cannot share the arena. */
static CGN_RC copy_out(const struct kvstore_block *b, int *out, struct cgn_err *err)
{
	int fd = memfd_create("cgn-kv-value", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	uint64_t size = kvstore_block_size(b), at = 0;
	struct iovec iov[64];
	size_t n;
	if (fd < 0)
		return CGN_FAIL(err, OVERLOADED, "no descriptor for the value");
	while (at < size) {
		(void)kvstore_block_iov(b, at, size - at, iov, CGN_COUNT(iov), &n);
		ssize_t wrote = writev(fd, iov, (int)n);
		if (wrote <= 0) {
			close(fd);
			return CGN_FAIL(err, NO_MEMORY, "no memory to hand the value over");
		}
		at += (uint64_t)wrote;
	}
	(void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
	*out = fd;
	return CGN_OK;
}

static size_t extents_of(const struct kvstore_block *b, bool arena, struct kvstore_extent *out)
{
	if (arena)
		return kvstore_block_extents(b, out, KVSTORE_MAX_EXTENTS);
	out[0] = (struct kvstore_extent){0, kvstore_block_size(b)};
	return kvstore_block_size(b) > 0;
}

static void lease_send(struct bulk_client *c, uint64_t id, const struct bulk_lease *l, int fd)
{
	struct kvstore_extent extents[KVSTORE_MAX_EXTENTS];
	struct cgn_buf *out = &c->bulk->out;
	size_t n = extents_of(l->block, fd < 0, extents);
	const struct kvbulk_msg m = {.type = KVBULK_VALUE,
		.flags = fd >= 0 ? KVBULK_OWN : 0,
		.id = id,
		.count = (uint16_t)n,
		.lease = l->id,
		.info = kvstore_block_info(l->block),
		.model = kvstore_block_model(l->block),
		.name = kvstore_block_name(l->block)};
	out->n = 0;
	kvbulk_write(&m, out);
	for (size_t i = 0; i < n; i++)
		kvbulk_add_extent(out, (struct kvbulk_extent){extents[i].offset, extents[i].length});
	bulk_send(c, fd);
}

void bulk_lend(struct bulk_client *c, uint64_t id, struct kvstore_block **take)
{
	struct bulk_lease *l = NULL;
	struct cgn_err err = {0};
	uint64_t arena_bytes;
	int fd = -1;
	cgn_rc rc = kvstore_arena(c->bulk->w->daemon->store, &arena_bytes) < 0 ? copy_out(*take, &fd, &err)
									       : CGN_OK;
	if (cgn_ok(rc))
		rc = lease_new(c, take, &l, &err);
	if (cgn_ok(rc))
		lease_send(c, id, l, fd);
	else
		bulk_fail(c, id, &err);
	if (fd >= 0)
		close(fd);
	kvstore_block_unref(take);
}
