/* SPDX-License-Identifier: Apache-2.0 */
/* The reading cursor. A value has a head (its type, and a number that is the value, a length or a count) and
 * a body of that many bytes. */
#include "base/msgpack/msgpack.h"

struct head {
	enum msgpack_type type;
	bool negative;   /* For MSGPACK_INT. */
	uint64_t number; /* The integer's bits, the float's bits, the bool, the length, or the count. */
	unsigned width;  /* Width of a float. */
};

struct msgpack_in msgpack_in_of(struct cgn_str bytes)
{
	const uint8_t *p = (const uint8_t *)bytes.p;
	return (struct msgpack_in){.begin = p, .at = p, .end = bytes.n > 0 ? p + bytes.n : p};
}

void msgpack_fault(struct msgpack_in *in, const char *what)
{
	if (in->bad != NULL)
		return;
	in->bad = what;
	in->bad_at = (size_t)(in->at - in->begin);
	in->end = in->at;
}

static enum msgpack_type type_of(uint8_t first)
{
	static const uint8_t types[] = {/* 0xc0 to 0xdf. */
		MSGPACK_NIL, MSGPACK_NONE, MSGPACK_BOOL, MSGPACK_BOOL, MSGPACK_BIN, MSGPACK_BIN, MSGPACK_BIN,
		MSGPACK_EXT, MSGPACK_EXT, MSGPACK_EXT, MSGPACK_FLOAT, MSGPACK_FLOAT, MSGPACK_INT, MSGPACK_INT,
		MSGPACK_INT, MSGPACK_INT, MSGPACK_INT, MSGPACK_INT, MSGPACK_INT, MSGPACK_INT, MSGPACK_EXT,
		MSGPACK_EXT, MSGPACK_EXT, MSGPACK_EXT, MSGPACK_EXT, MSGPACK_STR, MSGPACK_STR, MSGPACK_STR,
		MSGPACK_ARRAY, MSGPACK_ARRAY, MSGPACK_MAP, MSGPACK_MAP};
	if (first < 0x80 || first >= 0xe0)
		return MSGPACK_INT;
	if (first < 0x90)
		return MSGPACK_MAP;
	if (first < 0xa0)
		return MSGPACK_ARRAY;
	if (first < 0xc0)
		return MSGPACK_STR;
	return (enum msgpack_type)types[first - 0xc0];
}

enum msgpack_type msgpack_peek(const struct msgpack_in *in)
{
	return in->at < in->end ? type_of(*in->at) : MSGPACK_NONE;
}

/* Read |n| bytes, big-endian. */
static uint64_t take_number(struct msgpack_in *in, unsigned n)
{
	uint64_t v = 0;
	if ((size_t)(in->end - in->at) < n) {
		msgpack_fault(in, "ends within a value");
		return 0;
	}
	for (unsigned i = 0; i < n; i++)
		v = v << 8 | *in->at++;
	return v;
}

/* Return how many bytes of number follow the first byte, for 0xc0 and up. */
static unsigned number_width(uint8_t first)
{
	static const uint8_t widths[] = {/* 0xc0 to 0xdf. */
		0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2,
		4};
	return first < 0xe0 ? widths[first - 0xc0] : 0;
}

static void sign_extend(struct head *h, unsigned width)
{
	h->negative = width < 8 ? (h->number >> (8 * width - 1) & 1) != 0 : h->number >> 63 != 0;
	if (h->negative && width < 8)
		h->number |= UINT64_MAX << (8 * width);
}

static struct head small_head(uint8_t first)
{
	struct head h = {.type = type_of(first), .number = first};
	if (h.type == MSGPACK_MAP || h.type == MSGPACK_ARRAY)
		h.number = first & 0x0f;
	else if (h.type == MSGPACK_STR)
		h.number = first & 0x1f;
	else if (first >= 0xe0)
		sign_extend(&h, 1);
	return h;
}

static struct head take_head(struct msgpack_in *in)
{
	const uint8_t *start = in->at;
	if (in->at == in->end) {
		msgpack_fault(in, "ends where a value is due");
		return (struct head){MSGPACK_NONE};
	}
	uint8_t first = *in->at++;
	if (first < 0xc0 || first >= 0xe0)
		return small_head(first);
	struct head h = {.type = type_of(first), .width = number_width(first)};
	h.number = take_number(in, h.width);
	if (first >= 0xd0 && first <= 0xd3)
		sign_extend(&h, h.width);
	if (first == 0xc3)
		h.number = 1;
	if (first >= 0xd4 && first <= 0xd8)
		h.number = 1ULL << (first - 0xd4);
	if (h.type == MSGPACK_EXT)
		h.number++; /* Counts the type byte. */
	if (h.type == MSGPACK_NONE) {
		in->at = start;
		msgpack_fault(in, "a byte that MessagePack does not use");
	}
	return in->bad == NULL ? h : (struct head){MSGPACK_NONE};
}

/* Read the head of a value that must have |type|. On another type the cursor stays before the value, so that
 * the error names its place. */
static struct head head_want(struct msgpack_in *in, enum msgpack_type type, const char *otherwise)
{
	if (in->bad == NULL && in->at < in->end && msgpack_peek(in) != type &&
		msgpack_peek(in) != MSGPACK_NONE)
		msgpack_fault(in, otherwise);
	return in->bad == NULL ? take_head(in) : (struct head){MSGPACK_NONE};
}

bool msgpack_get_nil(struct msgpack_in *in)
{
	if (msgpack_peek(in) != MSGPACK_NIL)
		return false;
	in->at++;
	return true;
}

uint64_t msgpack_get_bits(struct msgpack_in *in)
{
	return head_want(in, MSGPACK_INT, "an integer was expected").number;
}

uint64_t msgpack_get_u64(struct msgpack_in *in)
{
	struct head h = head_want(in, MSGPACK_INT, "a number was expected");
	if (h.negative)
		msgpack_fault(in, "a negative number");
	return h.negative ? 0 : h.number;
}

uint32_t msgpack_get_u32(struct msgpack_in *in)
{
	uint64_t v = msgpack_get_u64(in);
	if (v > UINT32_MAX)
		msgpack_fault(in, "a number over 32 bits");
	return v > UINT32_MAX ? 0 : (uint32_t)v;
}

int64_t msgpack_get_i64(struct msgpack_in *in)
{
	struct head h = head_want(in, MSGPACK_INT, "an integer was expected");
	if (!h.negative && h.number > INT64_MAX) {
		msgpack_fault(in, "a number over 63 bits");
		return 0;
	}
	return (int64_t)h.number;
}

double msgpack_get_f64(struct msgpack_in *in)
{
	if (msgpack_peek(in) == MSGPACK_INT) {
		struct head h = take_head(in);
		return h.negative ? (double)(int64_t)h.number : (double)h.number;
	}
	struct head h = head_want(in, MSGPACK_FLOAT, "a number was expected");
	uint32_t narrow = (uint32_t)h.number;
	double wide = 0;
	float f = 0;
	memcpy(&f, &narrow, sizeof f);
	memcpy(&wide, &h.number, sizeof wide);
	return h.width == 4 ? (double)f : wide;
}

static struct cgn_str take_body(struct msgpack_in *in, struct head h)
{
	if (h.type == MSGPACK_NONE)
		return (struct cgn_str){0};
	if (h.number > (size_t)(in->end - in->at)) {
		msgpack_fault(in, "ends within a string");
		return (struct cgn_str){0};
	}
	struct cgn_str s = {(const char *)in->at, (size_t)h.number};
	in->at += s.n;
	return s;
}

struct cgn_str msgpack_get_str(struct msgpack_in *in)
{
	return take_body(in, head_want(in, MSGPACK_STR, "a string was expected"));
}

struct cgn_str msgpack_get_bin(struct msgpack_in *in)
{
	return take_body(in, head_want(in, MSGPACK_BIN, "bytes were expected"));
}

static uint32_t take_count(struct msgpack_in *in, struct head h)
{
	uint64_t least = h.type == MSGPACK_MAP ? 2 * h.number : h.number;
	if (least > (size_t)(in->end - in->at)) {
		msgpack_fault(in, "a container of more elements than there are bytes");
		return 0;
	}
	return (uint32_t)h.number;
}

uint32_t msgpack_get_array(struct msgpack_in *in)
{
	return take_count(in, head_want(in, MSGPACK_ARRAY, "an array was expected"));
}

uint32_t msgpack_get_map(struct msgpack_in *in)
{
	return take_count(in, head_want(in, MSGPACK_MAP, "a map was expected"));
}

struct cgn_str msgpack_get_raw(struct msgpack_in *in)
{
	const uint8_t *start = in->at;
	for (uint64_t due = 1; due > 0 && in->bad == NULL; due--) {
		struct head h = take_head(in);
		if (h.type == MSGPACK_STR || h.type == MSGPACK_BIN || h.type == MSGPACK_EXT)
			(void)take_body(in, h);
		else if (h.type == MSGPACK_ARRAY || h.type == MSGPACK_MAP)
			due += take_count(in, h) * (h.type == MSGPACK_MAP ? 2ULL : 1ULL);
		if (due > (uint64_t)(in->end - in->at) + 1)
			msgpack_fault(in, "a container of more elements than there are bytes");
	}
	return in->bad != NULL ? (struct cgn_str){0}
			       : (struct cgn_str){(const char *)start, (size_t)(in->at - start)};
}
