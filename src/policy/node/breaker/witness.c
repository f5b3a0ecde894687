/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/breaker/witness.h"

#define NODE_MOST      64 /* requests of a source at a node that are counted before the counts are halved */
#define ANSWERS_ENOUGH 3
#define ANSWER_WEIGHT  4 /* failures that one answer of another node weighs */

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

/* ---- nodes ---- */

/* Return |node|'s entry, or a free one, or NULL. */
static struct witness_node *node_find(struct witness_row *row, uint64_t node)
{
	struct witness_node *free_one = NULL;
	for (size_t i = 0; i < WITNESS_NODES; i++) {
		struct witness_node *n = &row->nodes[i];
		if (n->node == node)
			return n;
		if (n->node == 0 && free_one == NULL)
			free_one = n;
	}
	return free_one;
}

/* Return |node|'s entry. It may take the place of the node that failed least. */
static struct witness_node *node_take(struct witness_row *row, uint64_t node)
{
	struct witness_node *found = node_find(row, node);
	if (found != NULL && found->node == node)
		return found;
	struct witness_node *least = found != NULL ? found : &row->nodes[0];
	for (size_t i = 1; i < WITNESS_NODES && found == NULL; i++)
		if (row->nodes[i].failed < least->failed)
			least = &row->nodes[i];
	*least = (struct witness_node){.node = node};
	return least;
}

static void node_count(struct witness_node *n, bool failed)
{
	n->failed += failed;
	n->answered += !failed;
	if (n->failed + n->answered < NODE_MOST)
		return;
	n->failed /= 2;
	n->answered /= 2;
}

/* Return how many answers of another node are to be known before |node| is at fault. */
static unsigned answers_least(const struct witness_node *node)
{
	unsigned n = node->failed / ANSWER_WEIGHT;
	return n < 1 ? 1 : n < ANSWERS_ENOUGH ? n : ANSWERS_ENOUGH;
}

/* Return true if the source fails at |node|, and another one answers it. A single failure may be chance. */
static bool node_differs(const struct witness_row *row, const struct witness_node *node)
{
	unsigned least = answers_least(node);
	if (node->failed < 2 || node->failed < node->answered)
		return false;
	for (size_t i = 0; i < WITNESS_NODES; i++) {
		const struct witness_node *other = &row->nodes[i];
		if (other != node && other->answered >= least &&
			other->answered >= ANSWER_WEIGHT * other->failed)
			return true;
	}
	return false;
}

/* ---- the book ---- */

bool witness_failed(struct witness_book *b, const struct witness_failure *f)
{
	CGN_MUST(f->source != 0 && f->node != 0);
	struct witness_row *row = row_take(b, f);
	row->elsewhere |= row->node != f->node;
	row->at = f->now;
	struct witness_node *node = node_take(row, f->node);
	if (!request_add(row, f->request)) {
		if (node->failed == 0)
			node_count(node, true);
		return false;
	}
	node_count(node, true);
	return (!row->elsewhere && row->n <= f->most) || node_differs(row, node);
}

void witness_answered(struct witness_book *b, uint64_t source, uint64_t node, cgn_nsec now)
{
	struct witness_row *row = source != 0 ? row_find(b, source) : NULL;
	if (row == NULL)
		return;
	if (cgn_since(now, row->at) >= WITNESS_TIME) {
		*row = (struct witness_row){.source = 0};
		return;
	}
	struct witness_node *n = node != 0 ? node_find(row, node) : NULL;
	if (n == NULL)
		return;
	n->node = node;
	node_count(n, false);
}

uint64_t witness_bits(const struct witness_book *b)
{
	uint64_t bits = 0;
	for (size_t i = 0; i < WITNESS_SOURCES; i++)
		if (b->rows[i].source != 0)
			bits |= witness_bit(b->rows[i].source);
	return bits;
}
