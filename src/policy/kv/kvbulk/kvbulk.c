/* SPDX-License-Identifier: Apache-2.0 */
/* Flags and the size of list items, by type. */
#include "policy/kv/kvbulk/kvbulk.h"

#include "base/codec/cursor.h"

#define KEY_BYTES    (DIGEST_BYTES + 4)
#define INFO_BYTES   40
#define EXTENT_BYTES 16
#define CHANGE_BYTES (KEY_BYTES + 12)
#define PINNED       (1U << 31)
#define MAX_TEXT     1024

struct shape {
	const char *name;
	uint8_t flags;
	uint8_t item; /* Bytes; 0: no list. */
};
static const struct shape shapes[] = {
	[KVBULK_HELLO] = {"HELLO", 0, 0},
	[KVBULK_LOOKUP] = {"LOOKUP", KVBULK_PEERS | KVBULK_TENANT, KEY_BYTES},
	[KVBULK_GET] = {"GET", KVBULK_PEERS | KVBULK_VERIFY | KVBULK_TENANT, 8},
	[KVBULK_RELEASE] = {"RELEASE", 0, 8},
	[KVBULK_PUT] = {"PUT", KVBULK_CHECKSUM | KVBULK_IF_ABSENT | KVBULK_FILE | KVBULK_TENANT, 0},
	[KVBULK_REMOVE] = {"REMOVE", 0, KEY_BYTES},
	[KVBULK_PIN] = {"PIN", 0, 0},
	[KVBULK_WATCH] = {"WATCH", KVBULK_STOP, 0},
	[KVBULK_WELCOME] = {"WELCOME", 0, 0},
	[KVBULK_INFOS] = {"INFOS", 0, INFO_BYTES},
	[KVBULK_VALUE] = {"VALUE", KVBULK_OWN, EXTENT_BYTES},
	[KVBULK_COUNT] = {"COUNT", 0, 0},
	[KVBULK_FAILED] = {"FAILED", 0, 0},
	[KVBULK_CHANGES] = {"CHANGES", KVBULK_RESET | KVBULK_SYNCED, CHANGE_BYTES},
};

/* ---- pieces ---- */
static struct block_key key_take(struct cgn_cursor *c)
{
	struct block_key k;
	cgn_cursor_copy(c, &k.digest, sizeof k.digest);
	k.segment = cgn_cursor_u32(c);
	return k;
}

static struct block_info info_take(struct cgn_cursor *c)
{
	struct block_info i = {0};
	i.size = cgn_cursor_u64(c);
	i.checksum = cgn_cursor_u64(c);
	i.tokens = cgn_cursor_u32(c);
	uint32_t tiers = cgn_cursor_u32(c);
	i.tiers = tiers & BLOCK_TIER_MASK;
	i.pinned = (tiers & PINNED) != 0;
	i.created_unix_ms = cgn_cursor_u64(c);
	i.expires_unix_ms = cgn_cursor_u64(c);
	return i;
}

/* Read a u16 length and the text. A text longer than |max| is an error. */
static struct cgn_str text_take(struct cgn_cursor *c, size_t max)
{
	size_t n = cgn_cursor_u16(c);
	c->bad |= n > max;
	return cgn_cursor_str(c, n);
}

static void text_add(struct cgn_buf *out, struct cgn_str s)
{
	cgn_put_u16(out, (uint16_t)s.n);
	cgn_buf_str(out, s);
}

void kvbulk_add_key(struct cgn_buf *out, const struct block_key *k)
{
	cgn_buf_add(out, &k->digest, sizeof k->digest);
	cgn_put_u32(out, k->segment);
}

void kvbulk_add_lease(struct cgn_buf *out, uint64_t id)
{
	cgn_put_u64(out, id);
}

void kvbulk_add_info(struct cgn_buf *out, const struct block_info *i)
{
	cgn_put_u64(out, i->size);
	cgn_put_u64(out, i->checksum);
	cgn_put_u32(out, i->tokens);
	cgn_put_u32(out, i->tiers | (i->pinned ? PINNED : 0));
	cgn_put_u64(out, i->created_unix_ms);
	cgn_put_u64(out, i->expires_unix_ms);
}

void kvbulk_add_extent(struct cgn_buf *out, struct kvbulk_extent e)
{
	cgn_put_u64(out, e.offset);
	cgn_put_u64(out, e.length);
}

void kvbulk_add_change(struct cgn_buf *out, const struct block_change *c)
{
	kvbulk_add_key(out, &c->key);
	cgn_put_u32(out, c->tiers);
	cgn_put_u64(out, c->size);
}

/* ---- reading ---- */
static void put_take(struct cgn_cursor *c, struct kvbulk_msg *m)
{
	m->key = key_take(c);
	m->info.size = cgn_cursor_u64(c);
	m->info.checksum = cgn_cursor_u64(c);
	m->offset = cgn_cursor_u64(c);
	m->info.tokens = cgn_cursor_u32(c);
	m->info.created_unix_ms = cgn_cursor_u64(c);
	m->info.expires_unix_ms = cgn_cursor_u64(c);
	m->model = text_take(c, BLOCK_MAX_MODEL);
	m->name = text_take(c, BLOCK_MAX_NAME);
	m->text = cgn_cursor_str(c, c->n);
}

static void welcome_take(struct cgn_cursor *c, struct kvbulk_msg *m)
{
	m->version = cgn_cursor_u32(c);
	m->terms.max_calls = cgn_cursor_u32(c);
	m->terms.max_leases = cgn_cursor_u32(c);
	m->terms.max_inline = cgn_cursor_u32(c);
	m->terms.lease_bytes = cgn_cursor_u64(c);
	m->terms.lease_ms = cgn_cursor_u64(c);
	m->terms.arena_bytes = cgn_cursor_u64(c);
}

static void body_take(struct cgn_cursor *c, struct kvbulk_msg *m)
{
	switch (m->type) {
	case KVBULK_HELLO:
		c->bad |= cgn_cursor_u64(c) != KVBULK_MAGIC;
		m->version = cgn_cursor_u32(c);
		break;
	case KVBULK_GET:
		m->key = key_take(c);
		break;
	case KVBULK_PUT:
		put_take(c, m);
		break;
	case KVBULK_PIN:
		m->key = key_take(c);
		m->for_ms = cgn_cursor_u64(c);
		break;
	case KVBULK_WELCOME:
		welcome_take(c, m);
		break;
	case KVBULK_VALUE:
		m->lease = cgn_cursor_u64(c);
		m->info = info_take(c);
		m->model = text_take(c, BLOCK_MAX_MODEL);
		m->name = text_take(c, BLOCK_MAX_NAME);
		break;
	case KVBULK_COUNT:
		m->number = cgn_cursor_u32(c);
		break;
	case KVBULK_FAILED:
		m->number = cgn_cursor_u32(c);
		m->text = text_take(c, MAX_TEXT);
		break;
	case KVBULK_LOOKUP:
	case KVBULK_RELEASE:
	case KVBULK_REMOVE:
	case KVBULK_WATCH:
	case KVBULK_INFOS:
	case KVBULK_CHANGES:
		break;
	}
}

/* Return true when the extents add up to the value's size. */
static bool value_adds_up(const struct kvbulk_msg *m)
{
	uint64_t left = m->info.size;
	for (size_t i = 0; i < m->count; i++) {
		struct kvbulk_extent e = kvbulk_extent(m, i);
		if (e.length == 0 || e.length > left || e.offset > UINT64_MAX - e.length)
			return false;
		left -= e.length;
	}
	return left == 0;
}

static CGN_RC put_is_sound(const struct kvbulk_msg *m, const char *name, struct cgn_err *err)
{
	if (m->type == KVBULK_PUT && (m->flags & KVBULK_FILE) == 0 && m->text.n != m->info.size)
		return CGN_FAIL(err, INVALID,
			"PUT of %llu bytes brings %zu; a longer value comes by descriptor",
			(unsigned long long)m->info.size, m->text.n);
	if (m->type == KVBULK_PUT && (m->flags & KVBULK_FILE) != 0 && m->text.n != 0)
		return CGN_FAIL(err, INVALID, "PUT brings a descriptor, and %zu bytes", m->text.n);
	if (m->type == KVBULK_VALUE && !value_adds_up(m))
		return CGN_FAIL(err, INVALID, "the extents of a VALUE are not %llu bytes",
			(unsigned long long)m->info.size);
	if ((m->type == KVBULK_LOOKUP || m->type == KVBULK_REMOVE || m->type == KVBULK_RELEASE) &&
		m->count == 0)
		return CGN_FAIL(err, INVALID, "%s of nothing", name);
	return CGN_OK;
}

CGN_RC kvbulk_read(struct cgn_str bytes, struct kvbulk_msg *out, struct cgn_err *err)
{
	struct cgn_cursor c = cgn_cursor_of(bytes);
	unsigned type = cgn_cursor_u8(&c);
	const struct shape *s = type < CGN_COUNT(shapes) && shapes[type].name != NULL ? &shapes[type] : NULL;
	*out = (struct kvbulk_msg){.count = 0};
	if (s == NULL)
		return CGN_FAIL(err, INVALID, "a message of type %u, which does not exist in version %d",
			type, KVBULK_VERSION);
	out->type = (enum kvbulk_type)type;
	out->flags = cgn_cursor_u8(&c);
	out->count = cgn_cursor_u16(&c);
	out->budget_ms = cgn_cursor_u32(&c);
	out->id = cgn_cursor_u64(&c);
	if ((out->flags & ~s->flags) != 0 ||
		(out->budget_ms != 0 && (out->type != KVBULK_GET || (out->flags & KVBULK_PEERS) == 0)))
		return CGN_FAIL(err, INVALID, "%s has flags that do not exist: 0x%x", s->name, out->flags);
	if (out->count > (s->item > 0 ? KVBULK_MAX_ITEMS : 0))
		return CGN_FAIL(err, INVALID, "%s with %u items: at most %d", s->name, out->count,
			s->item > 0 ? KVBULK_MAX_ITEMS : 0);
	if ((out->flags & KVBULK_TENANT) != 0)
		out->tenant = text_take(&c, BLOCK_MAX_TENANT);
	body_take(&c, out);
	if (s->item > 0)
		out->text = cgn_cursor_str(&c, (size_t)out->count * s->item);
	if (!cgn_cursor_end(&c))
		return CGN_FAIL(err, INVALID, "%s of %zu bytes is not what its fields say", s->name, bytes.n);
	return put_is_sound(out, s->name, err);
}

static struct cgn_cursor list_item(const struct kvbulk_msg *m, size_t i)
{
	size_t n = shapes[m->type].item;
	CGN_MUST(i < m->count && m->text.n == m->count * n);
	return cgn_cursor_of((struct cgn_str){m->text.p + i * n, n});
}

struct block_key kvbulk_key(const struct kvbulk_msg *m, size_t i)
{
	struct cgn_cursor c = list_item(m, i);
	return key_take(&c);
}

uint64_t kvbulk_lease(const struct kvbulk_msg *m, size_t i)
{
	struct cgn_cursor c = list_item(m, i);
	return cgn_cursor_u64(&c);
}

struct block_info kvbulk_info(const struct kvbulk_msg *m, size_t i)
{
	struct cgn_cursor c = list_item(m, i);
	return info_take(&c);
}

struct kvbulk_extent kvbulk_extent(const struct kvbulk_msg *m, size_t i)
{
	struct cgn_cursor c = list_item(m, i);
	struct kvbulk_extent e = {0};
	e.offset = cgn_cursor_u64(&c);
	e.length = cgn_cursor_u64(&c);
	return e;
}

struct block_change kvbulk_change(const struct kvbulk_msg *m, size_t i)
{
	struct cgn_cursor c = list_item(m, i);
	struct block_change change = {.key = key_take(&c)};
	change.tiers = cgn_cursor_u32(&c) & BLOCK_TIER_MASK;
	change.size = cgn_cursor_u64(&c);
	return change;
}

/* ---- writing ---- */
static void put_add(const struct kvbulk_msg *m, struct cgn_buf *out)
{
	kvbulk_add_key(out, &m->key);
	cgn_put_u64(out, m->info.size);
	cgn_put_u64(out, m->info.checksum);
	cgn_put_u64(out, m->offset);
	cgn_put_u32(out, m->info.tokens);
	cgn_put_u64(out, m->info.created_unix_ms);
	cgn_put_u64(out, m->info.expires_unix_ms);
	text_add(out, m->model);
	text_add(out, m->name);
	cgn_buf_str(out, m->text);
}

static void welcome_add(const struct kvbulk_msg *m, struct cgn_buf *out)
{
	cgn_put_u32(out, m->version);
	cgn_put_u32(out, m->terms.max_calls);
	cgn_put_u32(out, m->terms.max_leases);
	cgn_put_u32(out, m->terms.max_inline);
	cgn_put_u64(out, m->terms.lease_bytes);
	cgn_put_u64(out, m->terms.lease_ms);
	cgn_put_u64(out, m->terms.arena_bytes);
}

void kvbulk_write(const struct kvbulk_msg *m, struct cgn_buf *out)
{
	cgn_put_u8(out, (uint8_t)m->type);
	cgn_put_u8(out, m->flags);
	cgn_put_u16(out, m->count);
	cgn_put_u32(out, m->budget_ms);
	cgn_put_u64(out, m->id);
	if ((m->flags & KVBULK_TENANT) != 0)
		text_add(out, m->tenant);
	switch (m->type) {
	case KVBULK_HELLO:
		cgn_put_u64(out, KVBULK_MAGIC);
		cgn_put_u32(out, m->version);
		break;
	case KVBULK_GET:
		kvbulk_add_key(out, &m->key);
		break;
	case KVBULK_PUT:
		put_add(m, out);
		break;
	case KVBULK_PIN:
		kvbulk_add_key(out, &m->key);
		cgn_put_u64(out, m->for_ms);
		break;
	case KVBULK_WELCOME:
		welcome_add(m, out);
		break;
	case KVBULK_VALUE:
		cgn_put_u64(out, m->lease);
		kvbulk_add_info(out, &m->info);
		text_add(out, m->model);
		text_add(out, m->name);
		break;
	case KVBULK_COUNT:
		cgn_put_u32(out, m->number);
		break;
	case KVBULK_FAILED:
		cgn_put_u32(out, m->number);
		text_add(out, (struct cgn_str){m->text.p, m->text.n < MAX_TEXT ? m->text.n : MAX_TEXT});
		break;
	case KVBULK_LOOKUP:
	case KVBULK_RELEASE:
	case KVBULK_REMOVE:
	case KVBULK_WATCH:
	case KVBULK_INFOS:
	case KVBULK_CHANGES:
		break;
	}
}
