/*
 * What goes wrong when registrations are kept and nobody says that their memory has gone; and what a cache that listens to
 * memory events makes of it.
 *
 *     cc $(oarlock env --cflags) stale_cache.c -o stale_cache -libverbs
 *     oarlock run -- ./stale_cache
 *
 * The program allocates a block, has it registered through a cache, and gives its address and key to a peer. Then it frees the
 * block. Its next allocation gets the same address and holds something else. Three things happen then:
 *
 *   write   the peer, which still has the key, writes where the block was
 *   read    the peer reads where the block was
 *   send    the program sends what it has there now, with the registration that its cache finds
 *
 * A cache that knows nothing of the free has kept the registration: the peer overwrites and reads memory that was never meant
 * for it. (The send is right here, because the software device goes by addresses. A device that has pinned pages sends the
 * bytes that were there before the free: run it on one to see that.) With memory events the key stops with the block, the peer
 * is refused, and the cache registers the new block.
 *
 * The last line is the result. Exit status 0: the first cache fails and the second does not, as it should be.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <malloc.h>
#include <oarlock/memory_events.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BLOCK (1 << 20)
#define MESSAGE 4096
/* More than the program ever has at once. */
#define ENTRIES 8

enum content { OLD = 'o', NEW = 'n', OF_PEER = 'p', NOTHING = 0 };

static void give_up(const char *what)
{
	fprintf(stderr, "stale_cache: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* A device with an active port and an address for RoCE version 2. */
struct port {
	struct ibv_context *context;
	struct ibv_pd *pd;
	union ibv_gid gid;
	int gid_index;
};

static struct port open_port(void)
{
	struct port port = { .gid_index = -1 };
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int at = 0; list && list[at] && port.gid_index < 0; at++) {
		struct ibv_gid_entry entries[64];
		struct ibv_port_attr attr;
		ssize_t count = 0;

		port.context = ibv_open_device(list[at]);
		if (!port.context)
			continue;
		if (ibv_query_port(port.context, 1, &attr) == 0 && attr.state == IBV_PORT_ACTIVE)
			count = ibv_query_gid_table(port.context, entries, 64, 0);
		for (ssize_t entry = 0; entry < count && port.gid_index < 0; entry++) {
			if (entries[entry].gid_type == IBV_GID_TYPE_ROCE_V2 && entries[entry].port_num == 1) {
				port.gid = entries[entry].gid;
				port.gid_index = entries[entry].gid_index;
			}
		}
		if (port.gid_index < 0)
			ibv_close_device(port.context);
	}
	if (list)
		ibv_free_device_list(list);
	errno = ENODEV;
	if (port.gid_index < 0)
		give_up("no device with an active port");
	port.pd = ibv_alloc_pd(port.context);
	if (!port.pd)
		give_up("ibv_alloc_pd");
	return port;
}

/* One end of a connection. */
struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct end new_end(const struct port *port)
{
	struct end end = { .cq = ibv_create_cq(port->context, 4, NULL, NULL, 0) };
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
		.send_cq = end.cq,
		.recv_cq = end.cq,
		.qp_type = IBV_QPT_RC,
	};

	end.qp = end.cq ? ibv_create_qp(port->pd, &init) : NULL;
	if (!end.qp)
		give_up("ibv_create_qp");
	return end;
}

static void connect_end(const struct port *port, struct end *end, uint32_t to)
{
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	struct ibv_qp_attr receive = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = to,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .dgid = port->gid, .sgid_index = port->gid_index, .hop_limit = 64 } },
	};
	struct ibv_qp_attr send = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 18,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};

	if (ibv_modify_qp(end->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	    ibv_modify_qp(end->qp, &receive,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
	    ibv_modify_qp(end->qp, &send,
			  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				  IBV_QP_MAX_QP_RD_ATOMIC))
		give_up("ibv_modify_qp");
}

/* The program's end and the peer's, which are both here. A refusal ends a connection, so each step has its own. */
struct connection {
	struct end program, peer;
};

static struct connection connect_both(const struct port *port)
{
	struct connection both = { new_end(port), new_end(port) };

	connect_end(port, &both.program, both.peer.qp->qp_num);
	connect_end(port, &both.peer, both.program.qp->qp_num);
	return both;
}

static void disconnect(struct connection *both)
{
	struct end ends[] = { both->program, both->peer };

	for (int at = 0; at < 2; at++) {
		if (ibv_destroy_qp(ends[at].qp) || ibv_destroy_cq(ends[at].cq))
			give_up("ibv_destroy_qp");
	}
}

static enum ibv_wc_status completion(struct end *end)
{
	struct timespec pause = { .tv_nsec = 50000 };
	struct ibv_wc wc;

	/* The program's alarm ends a wait in vain. */
	while (ibv_poll_cq(end->cq, 1, &wc) == 0)
		nanosleep(&pause, NULL);
	return wc.status;
}

static enum ibv_wc_status done(struct end *end, enum ibv_wr_opcode opcode, void *local, uint32_t lkey, void *remote,
			       uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)local, .length = MESSAGE, .lkey = lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)remote, .rkey = rkey },
	}, *bad;

	if (ibv_post_send(end->qp, &wr, &bad))
		give_up("ibv_post_send");
	return completion(end);
}

/* A cache of registrations: by address and length, as every middleware has one. */
struct entry {
	char *addr;
	size_t length;
	struct ibv_mr *mr;
};

struct cache {
	struct port *port;
	/* Of the cache that listens to memory events. */
	struct oarlock_memory_channel *channel;
	/* The counter when the events were last read. */
	uint64_t seen;
	struct entry entries[ENTRIES];
	int hits, misses, dropped;
	/* Hits that gave a registration whose memory had gone. */
	int stale;
};

static void drop(struct cache *cache, struct entry *entry)
{
	if (ibv_dereg_mr(entry->mr))
		give_up("ibv_dereg_mr");
	entry->mr = NULL;
	cache->dropped++;
}

/* Forgets what memory events name. The cookie of a region is the place of its entry. */
static void listen_to_events(struct cache *cache)
{
	struct oarlock_memory_event event;

	/* Every call that has returned is known from here on. It costs one system call when nothing has happened. */
	if (oarlock_settle_memory_events(cache->channel))
		give_up("oarlock_settle_memory_events");
	while (oarlock_memory_generation(cache->channel) != cache->seen) {
		if (oarlock_read_memory_events(cache->channel, &event, 1) != 1)
			give_up("oarlock_read_memory_events");
		if (event.type == OARLOCK_MEMORY_LAST)
			cache->seen = event.generation;
		else if (cache->entries[event.cookie].mr)
			drop(cache, &cache->entries[event.cookie]);
	}
}

static struct ibv_mr *lookup(struct cache *cache, char *addr, size_t length)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct entry *empty = NULL;

	if (cache->channel)
		listen_to_events(cache);
	for (int at = 0; at < ENTRIES; at++) {
		struct entry *entry = &cache->entries[at];

		if (!entry->mr) {
			empty = empty ? empty : entry;
		} else if (entry->addr <= addr && addr + length <= entry->addr + entry->length) {
			cache->hits++;
			return entry->mr;
		}
	}
	if (!empty) {
		errno = ENOSPC;
		give_up("the cache is full");
	}
	*empty = (struct entry){ .addr = addr, .length = length };
	empty->mr = cache->channel ? oarlock_reg_mr_notify(cache->port->pd, addr, length, access,
							   empty - cache->entries, OARLOCK_MEMORY_REPORT) :
				     ibv_reg_mr(cache->port->pd, addr, length, access);
	if (!empty->mr)
		give_up("registering memory");
	cache->misses++;
	return empty->mr;
}

static void empty_cache(struct cache *cache)
{
	for (int at = 0; at < ENTRIES; at++) {
		if (cache->entries[at].mr)
			drop(cache, &cache->entries[at]);
	}
}

/* How many bytes are not what they should be. */
static int wrong(const char *bytes, enum content content)
{
	int count = 0;

	for (int at = 0; at < MESSAGE; at++)
		count += bytes[at] != (char)content;
	return count;
}

/* An allocation at an address that has just become free: often the next one, here on purpose. */
static char *allocate_at(uintptr_t addr)
{
	const uintptr_t page = sysconf(_SC_PAGESIZE);
	char *start = (char *)(addr & -page);
	char *got = mmap(start, BLOCK + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (got != start)
		give_up("the address cannot be allocated again");
	return start + (addr & (page - 1));
}

static void release(char *addr)
{
	const uintptr_t page = sysconf(_SC_PAGESIZE);

	munmap((char *)((uintptr_t)addr & -page), BLOCK + page);
}

/* All of it with one cache: whether any byte is not what it should be. */
static int is_corrupt(const char *name, struct port *port, struct cache *cache)
{
	static char at_peer[MESSAGE];
	struct ibv_mr *peer = ibv_reg_mr(port->pd, at_peer, MESSAGE, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_recv_wr receive = {
		.sg_list = &(struct ibv_sge){ .addr = (uintptr_t)at_peer, .length = MESSAGE, .lkey = peer ? peer->lkey : 0 },
		.num_sge = 1,
	}, *bad;
	struct connection both;
	enum ibv_wc_status status;
	int bytes, corrupt = 0;

	if (!peer)
		give_up("ibv_reg_mr");
	/* The block is given to the peer, and serves. */
	char *block = malloc(BLOCK);
	if (!block)
		give_up("malloc");
	memset(block, OLD, BLOCK);
	uint32_t key = lookup(cache, block, BLOCK)->rkey;
	if (lookup(cache, block + MESSAGE, MESSAGE)->rkey != key || cache->hits != 1 || cache->misses != 1)
		give_up("the cache does not cache");
	both = connect_both(port);
	memset(at_peer, OF_PEER, MESSAGE);
	status = done(&both.peer, IBV_WR_RDMA_WRITE, at_peer, peer->lkey, block, key);
	if (status != IBV_WC_SUCCESS || wrong(block, OF_PEER))
		give_up("the peer cannot write to the block");
	disconnect(&both);

	/* The block is freed, and its address allocated again for something else. Whether free(3) has told the kernel shows here. */
	uintptr_t address = (uintptr_t)block;
	free(block);
	block = allocate_at(address);
	memset(block, NEW, BLOCK);

	both = connect_both(port);
	status = done(&both.peer, IBV_WR_RDMA_WRITE, at_peer, peer->lkey, block, key);
	bytes = wrong(block, NEW);
	printf("%-8s write: the peer is told \"%s\"; of the program's %d bytes %d are overwritten\n", name,
	       ibv_wc_status_str(status), MESSAGE, bytes);
	corrupt |= bytes > 0;
	memset(block, NEW, BLOCK);
	disconnect(&both);

	both = connect_both(port);
	memset(at_peer, NOTHING, MESSAGE);
	status = done(&both.peer, IBV_WR_RDMA_READ, at_peer, peer->lkey, block, key);
	bytes = wrong(at_peer, NOTHING);
	printf("%-8s read:  the peer is told \"%s\"; it has read %d bytes that were never meant for it\n", name,
	       ibv_wc_status_str(status), bytes);
	corrupt |= bytes > 0;
	disconnect(&both);

	both = connect_both(port);
	memset(at_peer, NOTHING, MESSAGE);
	if (ibv_post_recv(both.peer.qp, &receive, &bad))
		give_up("ibv_post_recv");
	struct ibv_mr *mr = lookup(cache, block, BLOCK);
	cache->stale += mr->rkey == key;
	status = done(&both.program, IBV_WR_SEND, block, mr->lkey, NULL, 0);
	if (status == IBV_WC_SUCCESS && completion(&both.peer) != IBV_WC_SUCCESS)
		give_up("the message does not arrive");
	bytes = wrong(at_peer, NEW);
	printf("%-8s send:  with %s registration: \"%s\"; of %d bytes that arrive %d are wrong\n", name,
	       cache->stale ? "the old" : "a new", ibv_wc_status_str(status), MESSAGE, bytes);
	corrupt |= bytes > 0;
	disconnect(&both);

	printf("%-8s cache: hits=%d stale=%d misses=%d dropped=%d\n", name, cache->hits, cache->stale, cache->misses,
	       cache->dropped);
	empty_cache(cache);
	release(block);
	if (ibv_dereg_mr(peer))
		give_up("ibv_dereg_mr");
	return corrupt;
}

int main(void)
{
	struct port port;
	struct cache naive = { .port = &port }, notified = { .port = &port };

	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(60);
	/* Blocks of this size come from the kernel and go back to it, always. */
	mallopt(M_MMAP_THRESHOLD, BLOCK / 2);
	port = open_port();

	int naive_is_corrupt = is_corrupt("naive", &port, &naive);
	if (!oarlock_has_memory_events()) {
		puts("the library in this process has no memory events: run it with `oarlock run`");
		return 1;
	}
	notified.channel = oarlock_create_memory_channel(port.context);
	if (!notified.channel)
		give_up("oarlock_create_memory_channel");
	int notified_is_corrupt = is_corrupt("notified", &port, &notified);
	if (oarlock_destroy_memory_channel(notified.channel) || ibv_dealloc_pd(port.pd) || ibv_close_device(port.context))
		give_up("closing the device");

	printf("stale_cache: naive=%s notified=%s\n", naive_is_corrupt ? "corrupt" : "right",
	       notified_is_corrupt ? "corrupt" : "right");
	return naive_is_corrupt && naive.stale == 1 && !notified_is_corrupt && notified.stale == 0 ? 0 : 1;
}
