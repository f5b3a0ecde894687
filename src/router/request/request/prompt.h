/* SPDX-License-Identifier: Apache-2.0 */
/* prompt: the model that the body asks for, and the prompt's blocks. plan/body.c reads the body, the folder
 * tokens/ makes the blocks. */
#pragma once
#include "policy/text/body/body.h"
#include "policy/text/prefix/prefix.h"

struct gw_tokenizing; /* tokens/tokens_priv.h */

struct gw_prompt {
	struct cgn_str model; /* resolved; empty while unknown */
	struct cgn_str asked; /* as the client names the model: its own name, or an alias */
	/* place of that name in r->body, as a JSON string with its quotes; name_n is 0 when it has none */
	size_t name_at, name_n;
	bool parsed;             /* the body was read; unless |uncut|, its chain is there or on its way */
	bool uncut;              /* the body was read, and its blocks are still to be made */
	bool resume;             /* the answer shall be resumable, if the body allows it */
	struct body_facts facts; /* borrowed from r->body */
	struct body_fault fault; /* code == NULL: none */
	/* the model that the body names, while it may still turn out to exist (plan/body.c); p == NULL: not so */
	struct cgn_str awaited;
	/* plan/isolate.c: separates the prompt's blocks from those of other tenants; empty: tenants share them */
	struct cgn_str salt;
	struct cgn_str salt_member; /* the salt as a member of a body, with the comma before it */
	struct cgn_str owner;       /* the tenant's salt alone, without what the client adds to it */
	/* request/streamusage: "stream_options" as a member, with the comma before it: as an engine is asked for usage, and as
	 * the client sent it; empty: there is none */
	struct cgn_str usage_asked, usage_own;
	bool stream;
	bool tools;           /* the body offers tools */
	bool form;            /* the body is a multipart form */
	bool media;           /* the prompt has pictures or other media, whose tokens are not known */
	bool several;         /* several prompts, or several answers to one: the engine's counts are sums */
	uint32_t block_bytes; /* bytes in a block, for a chain of bytes */
	struct prefix_chain chain;
	const char *unit;      /* unit of blocks, gw_tokens_text; NULL: there are no blocks */
	uint32_t block_tokens; /* tokens in a block; 0: blocks are of bytes */
	uint64_t tokens;       /* tokens counted, of at most ROUTE_MAX_BLOCKS blocks; 0: unknown */
	uint32_t answer_limit; /* tokens that the answer may have; 0: the body names no limit */
	uint64_t
		keep_alive; /* how long the engine is kept, by Ollama's API (proto_keep_alive); 0: not said */
	struct gw_tokenizing *tokenizing; /* state while tokens are made */
};
