/* A program that allocates and frees on three threads, whatever its allocator does with the memory, and offers its blocks to a peer by keys that end
 * with their memory: oarlock/memory_events.h over the C libraries. The peer reads every block that it is told of, and gets what is in it. When a block
 * is freed, the key works for as long as the allocator keeps the memory, and is refused once an event has told that it went.
 * usage: blocks ADDRESS */
#include "rule.h"
#include "pair.h"
#include "memory.h"

#define BLOCKS 24
#define ROUNDS 1500
static const char name[] = "blocks";

struct block {
	uint64_t *words;
	size_t length;
	uint64_t serial;
	/* Kept over a free, until an event tells that the memory is gone. */
	struct ibv_mr *mr;
	uintptr_t start;
	int gone;
};

static struct block blocks[BLOCKS];
static struct oarlock_memory_channel *channel;
static struct ibv_pd *pd;
static struct end program, peer;
static char *at_peer;
static struct ibv_mr *peer_mr;
static uint64_t events_read;
static int over;

static uint32_t next_number(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

/* From 4 KiB to 1 MiB. */
static size_t some_length(uint64_t *state)
{
	return (size_t)4096 << next_number(state) % 9;
}

/* Allocator traffic beside: what it gives back to the system may lie beside what is registered, or be it. */
static void *traffic(void *seed)
{
	uint64_t state = (uintptr_t)seed;
	char *own[16] = { 0 };

	while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
		char **slot = &own[next_number(&state) % 16];
		size_t length = some_length(&state);

		if (*slot && next_number(&state) % 2) {
			*slot = realloc(*slot, length);
		} else {
			free(*slot);
			*slot = malloc(length);
		}
		CHECK(name, *slot != NULL);
		memset(*slot, 1, length);
		usleep(50);
	}
	for (int at = 0; at < 16; at++)
		free(own[at]);
	return NULL;
}

static void listen_to_events(void)
{
	struct oarlock_memory_event event;

	CHECK(name, oarlock_settle_memory_events(channel) == 0);
	do {
		CHECK(name, oarlock_read_memory_events(channel, &event, 1) == 1);
		if (event.type == OARLOCK_MEMORY_INVALIDATED) {
			blocks[event.cookie].gone = 1;
			events_read++;
		}
	} while (event.type != OARLOCK_MEMORY_LAST);
}

static enum ibv_wc_status peer_reads(uintptr_t start, size_t length, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)at_peer, .length = length, .lkey = peer_mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = start, .rkey = rkey },
	}, *bad;

	CHECK(name, ibv_post_send(peer.qp, &wr, &bad) == 0);
	return completion(name, peer.cq).status;
}

static void forget(struct block *block)
{
	if (block->mr)
		CHECK(name, ibv_dereg_mr(block->mr) == 0);
	block->mr = NULL;
	block->gone = 0;
}

static void allocate(struct block *block, uint64_t serial, uint64_t *state)
{
	block->length = some_length(state);
	block->words = malloc(block->length);
	CHECK(name, block->words != NULL);
	block->serial = serial;
	for (size_t at = 0; at < block->length / 8; at++)
		block->words[at] = serial;
}

int main(int argc, char **argv)
{
	uint64_t state = 1, reads = 0, found = 0, refused = 0, kept = 0, registrations = 0;
	pthread_t threads[2];

	start(argc, argv);
	pd = ibv_alloc_pd(open_port(name));
	CHECK(name, pd != NULL);
	channel = new_memory_channel(name, port_context);
	program = new_end(name, pd, NULL, IBV_QPT_RC);
	peer = new_end(name, pd, NULL, IBV_QPT_RC);
	connect_ends(name, &program, &peer);
	at_peer = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	peer_mr = ibv_reg_mr(pd, at_peer, 1 << 20, IBV_ACCESS_LOCAL_WRITE);
	CHECK(name, peer_mr != NULL);
	for (uintptr_t thread = 0; thread < 2; thread++)
		CHECK(name, pthread_create(&threads[thread], NULL, traffic, (void *)(thread + 77)) == 0);

	for (uint64_t round = 1; round <= ROUNDS; round++) {
		struct block *block = &blocks[next_number(&state) % BLOCKS];

		if (!block->words) {
			/* Nobody registered what the allocator gives now; the region of this place ends with the last block. */
			forget(block);
			allocate(block, round, &state);
		} else if (next_number(&state) % 3 == 0) {
			block->start = (uintptr_t)block->words;
			free(block->words);
			block->words = NULL;
			listen_to_events();
			if (block->mr && block->gone) {
				enum ibv_wc_status status = peer_reads(block->start, block->length, block->mr->rkey);

				if (status != IBV_WC_REM_ACCESS_ERR)
					FAIL(name, "the key of a block that is gone: %s", ibv_wc_status_str(status));
				refused++;
				/* A refusal ends the connection. */
				destroy_end(name, &program);
				destroy_end(name, &peer);
				program = new_end(name, pd, NULL, IBV_QPT_RC);
				peer = new_end(name, pd, NULL, IBV_QPT_RC);
				connect_ends(name, &program, &peer);
			} else if (block->mr) {
				kept++;
			}
			continue;
		}
		listen_to_events();
		/* A block can lose part of its pages' neighbours only: if it is gone, the region was that of an earlier block. */
		if (block->gone)
			forget(block);
		if (block->mr) {
			found++;
		} else {
			block->mr = oarlock_reg_mr_notify(pd, block->words, block->length, IBV_ACCESS_REMOTE_READ, block - blocks,
							  OARLOCK_MEMORY_REPORT);
			CHECK(name, block->mr != NULL);
			registrations++;
		}
		enum ibv_wc_status status = peer_reads((uintptr_t)block->words, block->length, block->mr->rkey);
		if (status != IBV_WC_SUCCESS)
			FAIL(name, "a block that is there: %s", ibv_wc_status_str(status));
		for (size_t at = 0; at < block->length / 8; at++) {
			if (((uint64_t *)at_peer)[at] != block->serial)
				FAIL(name, "round %llu: the peer reads other bytes", (unsigned long long)round);
		}
		reads++;
	}
	__atomic_store_n(&over, 1, __ATOMIC_RELEASE);
	for (int thread = 0; thread < 2; thread++)
		pthread_join(threads[thread], NULL);
	for (int at = 0; at < BLOCKS; at++) {
		forget(&blocks[at]);
		free(blocks[at].words);
	}
	listen_to_events();
	destroy_end(name, &program);
	destroy_end(name, &peer);
	CHECK(name, ibv_dereg_mr(peer_mr) == 0);
	CHECK(name, oarlock_destroy_memory_channel(channel) == 0);
	CHECK(name, ibv_dealloc_pd(pd) == 0 && ibv_close_device(port_context) == 0);
	printf("blocks: reads=%llu found=%llu registered=%llu events=%llu refused=%llu kept=%llu\n", (unsigned long long)reads,
	       (unsigned long long)found, (unsigned long long)registrations, (unsigned long long)events_read,
	       (unsigned long long)refused, (unsigned long long)kept);
	return 0;
}
