/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pb/pb_tree.h"

void pb_tree_init(struct pb_tree *t, size_t limit)
{
	*t = (struct pb_tree){.bad = false};
	cgn_arena_init(&t->arena, limit);
}

void pb_tree_fini(struct pb_tree *t)
{
	cgn_arena_fini(&t->arena);
}

void *pb_tree_array(struct pb_tree *t, size_t n, size_t size)
{
	void *p = n <= SIZE_MAX / size ? cgn_arena_zero(&t->arena, n * size) : NULL;
	t->bad = t->bad || p == NULL;
	return p;
}

void *pb_tree_new(struct pb_tree *t, const ProtobufCMessageDescriptor *type)
{
	CGN_MUST(type->sizeof_message <= sizeof t->spare);
	void *m = pb_tree_array(t, 1, type->sizeof_message);
	if (m == NULL)
		m = t->spare;
	type->message_init(m);
	return m;
}

/* The array doubles whenever it is full: at each power of two. */
void *pb_tree_add(struct pb_tree *t, const ProtobufCMessageDescriptor *type, void *list, size_t *n)
{
	void *m = pb_tree_new(t, type), **array;
	memcpy(&array, list, sizeof array);
	if (!t->bad && (*n & (*n - 1)) == 0) {
		void **wider = pb_tree_array(t, *n > 0 ? 2 * *n : 1, sizeof *wider);
		if (wider != NULL && *n > 0)
			memcpy(wider, array, *n * sizeof *wider);
		memcpy(list, &wider, sizeof wider);
		array = wider;
	}
	if (!t->bad)
		array[(*n)++] = m;
	return m;
}

char *pb_tree_text(struct pb_tree *t, struct cgn_str text)
{
	char *z = cgn_arena_strz(&t->arena, text);
	t->bad = t->bad || z == NULL;
	return z != NULL ? z : pb_text("");
}
