/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/breaker/witness.h"

static struct witness_row *row_find(struct witness_book *b, uint64_t source)
{
	for (size_t i = 0; i < WITNESS_SOURCES; i++)
		if (b->rows[i].source == source)
			return &b->rows[i];
	return NULL;
}

static struct witness_row *row_oldest(struct witness_book *b)
{
	struct witness_row *oldest = &b->rows[0];
	for (size_t i = 1; i < WITNESS_SOURCES && oldest->source != 0; i++)
		if (b->rows[i].source == 0 || b->rows[i].at < oldest->at)
			oldest = &b->rows[i];
	return oldest;
}

static struct witness_row *row_take(struct witness_book *b, const struct witness_failure *f)
{
	struct witness_row *row = row_find(b, f->source);
	if (row != NULL && cgn_since(f->now, row->at) < WITNESS_TIME)
		return row;
	if (row == NULL)
		row = row_oldest(b);
	*row = (struct witness_row){.source = f->source, .node = f->node};
	return row;
}

/* Keep |request|. Return false if it is among the last ones. */
static bool request_add(struct witness_row *row, uint64_t request)
{
	size_t kept = row->n < WITNESS_REQUESTS ? row->n : WITNESS_REQUESTS;
	for (size_t i = 0; i < kept; i++)
		if (row->requests[i] == request)
			return false;
	row->requests[row->n++ % WITNESS_REQUESTS] = request;
	return true;
}

bool witness_failed(struct witness_book *b, const struct witness_failure *f)
{
	CGN_MUST(f->source != 0);
	struct witness_row *row = row_take(b, f);
	row->elsewhere |= row->node != f->node;
	row->node = f->node;
	row->at = f->now;
	bool added = request_add(row, f->request);
	return added && !row->elsewhere && row->n <= f->most;
}

void witness_answered(struct witness_book *b, uint64_t source)
{
	struct witness_row *row = source != 0 ? row_find(b, source) : NULL;
	if (row != NULL)
		*row = (struct witness_row){.source = 0};
}

uint64_t witness_bits(const struct witness_book *b)
{
	uint64_t bits = 0;
	for (size_t i = 0; i < WITNESS_SOURCES; i++)
		if (b->rows[i].source != 0)
			bits |= witness_bit(b->rows[i].source);
	return bits;
}
