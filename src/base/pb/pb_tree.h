/* SPDX-License-Identifier: Apache-2.0 */
/* pb_tree: builds a message with its submessages and texts in one arena. A message that is built here is packed or
 * printed, and goes with the arena. */
#pragma once
#include "base/core/arena.h"
#include "base/pb/pb.h"

/* Bytes of the largest message struct that a tree takes. */
#define PB_TREE_MESSAGE 512

struct pb_tree {
	struct cgn_arena arena;
	bool bad; /* Memory was exhausted: throw the message away. */
	_Alignas(16) char spare[PB_TREE_MESSAGE];
};

/* Build within |limit| bytes. */
void pb_tree_init(struct pb_tree *t, size_t limit);
void pb_tree_fini(struct pb_tree *t);
/* Return a new message of |type|. Never NULL: where memory is exhausted, |t| is bad and the message is a spare one. */
void *pb_tree_new(struct pb_tree *t, const ProtobufCMessageDescriptor *type);
/* Return a new message of |type|, appended to the repeated field whose array is |*(T ***)list| and whose length is |*n|.
 * Never NULL, as pb_tree_new. */
void *pb_tree_add(struct pb_tree *t, const ProtobufCMessageDescriptor *type, void *list, size_t *n);
/* Return an array of |n| elements of |size| bytes, cleared; NULL where memory is exhausted: |t| is bad. */
void *pb_tree_array(struct pb_tree *t, size_t n, size_t size);
/* Return a copy of a text; "" where memory is exhausted. */
char *pb_tree_text(struct pb_tree *t, struct cgn_str text);

/* The same for the messages of cognitora.v1: PB_ADD(t, to, models, scale_model) appends a ScaleModel to |to->models|. */
#define PB_NEW(t, type) pb_tree_new((t), &cognitora__v1__##type##__descriptor)
#define PB_ADD(t, to, field, type) \
	pb_tree_add((t), &cognitora__v1__##type##__descriptor, &(to)->field, &(to)->n_##field)
