/* Multicast: rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast. */
#include "rule.h"
#include <rdma/rdma_verbs.h>

#define GRH 40

/* A group of the address's family. */
static struct sockaddr *group(int number)
{
	static _Thread_local struct sockaddr_storage at;
	struct sockaddr_in *in = (struct sockaddr_in *)&at;

	memset(&at, 0, sizeof at);
	if (rule_base.ss_family != AF_INET)
		FAIL("start", "groups of IPv6 are not joined on RoCE v2");
	in->sin_family = AF_INET;
	in->sin_addr.s_addr = htonl(0xEF4D0100 + number);
	return (struct sockaddr *)&at;
}

struct member {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	char memory[GRH + 32];
};

static void bound(const char *rule, struct member *member)
{
	member->channel = new_channel(rule);
	member->id = new_id(rule, member->channel, RDMA_PS_UDP);
	CHECK(rule, rdma_resolve_addr(member->id, address(0), group(1), 2000) == 0);
	expect(rule, member->channel, RDMA_CM_EVENT_ADDR_RESOLVED);
}

static void equipped(const char *rule, struct member *member)
{
	bound(rule, member);
	new_qp(rule, member->id);
	member->mr = rdma_reg_msgs(member->id, member->memory, sizeof member->memory);
	CHECK(rule, member->mr != NULL);
	CHECK(rule, rdma_post_recv(member->id, NULL, member->memory, sizeof member->memory, member->mr) == 0);
}

static void gone(const char *rule, struct member *member)
{
	if (member->mr)
		CHECK(rule, rdma_dereg_mr(member->mr) == 0);
	destroy(rule, member->id);
	rdma_destroy_event_channel(member->channel);
	memset(member, 0, sizeof *member);
}

/* Whether a message is there within so many milliseconds. */
static int received(struct member *member, struct ibv_wc *wc, int milliseconds)
{
	for (int i = 0; i <= milliseconds; i++) {
		int got = ibv_poll_cq(member->id->recv_cq, 1, wc);

		if (got)
			return got;
		usleep(1000);
	}
	return 0;
}

static void send_to(const char *rule, struct member *from, struct ibv_ah *ah, uint32_t qkey, const char *text)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	static char memory[32];
	struct ibv_mr *mr = rdma_reg_msgs(from->id, memory, sizeof memory);
	struct ibv_wc wc;

	CHECK(rule, mr != NULL);
	strcpy(memory, text);
	sge = (struct ibv_sge){ .addr = (uintptr_t)memory, .length = strlen(text) + 1, .lkey = mr->lkey };
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 0xFFFFFF;
	wr.wr.ud.remote_qkey = qkey;
	CHECK(rule, ibv_post_send(from->id->qp, &wr, &bad) == 0);
	CHECK(rule, rdma_get_send_comp(from->id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rule, rdma_dereg_mr(mr) == 0);
}

static void members(void)
{
	struct member first = { 0 }, second = { 0 }, only = { 0 };
	struct rdma_cm_join_mc_attr_ex attr = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
	};
	struct rdma_cm_event *event;
	struct ibv_ah *ah, *only_ah;
	uint32_t qkey;
	struct ibv_wc wc;
	int context;

	equipped("mcast-join", &first);
	equipped("mcast-join", &second);
	equipped("mcast-join", &only);
	CHECK("mcast-join", rdma_join_multicast(first.id, group(1), &context) == 0);
	event = event_of("mcast-join", first.channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK("mcast-join", event->id == first.id && event->status == 0);
	ok("mcast-join");
	CHECK("mcast-context", event->param.ud.private_data == &context);
	ok("mcast-context");
	CHECK("mcast-send", event->param.ud.qp_num == 0xFFFFFF && event->param.ud.qkey == RDMA_UDP_QKEY);
	CHECK("mcast-send", event->param.ud.ah_attr.is_global);
	qkey = event->param.ud.qkey;
	ah = ibv_create_ah(first.id->pd, &event->param.ud.ah_attr);
	CHECK("mcast-send", ah != NULL);
	CHECK("mcast-send", rdma_ack_cm_event(event) == 0);

	CHECK("mcast-join", rdma_join_multicast(second.id, group(1), NULL) == 0);
	expect("mcast-join", second.channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	attr.addr = group(1);
	CHECK("mcast-sendonly", rdma_join_multicast_ex(only.id, &attr, &only) == 0);
	event = event_of("mcast-sendonly", only.channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK("mcast-sendonly", event->param.ud.private_data == &only);
	only_ah = ibv_create_ah(only.id->pd, &event->param.ud.ah_attr);
	CHECK("mcast-sendonly", only_ah != NULL && rdma_ack_cm_event(event) == 0);

	send_to("mcast-send", &first, ah, qkey, "to all");
	CHECK("mcast-receive", received(&first, &wc, LONG) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK("mcast-receive", received(&second, &wc, LONG) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK("mcast-send", wc.src_qp == first.id->qp->qp_num);
	CHECK("mcast-grh", wc.byte_len == GRH + 7 && (wc.wc_flags & IBV_WC_GRH));
	CHECK("mcast-receive", !strcmp(first.memory + GRH, "to all") && !strcmp(second.memory + GRH, "to all"));
	ok("mcast-send");
	ok("mcast-receive");
	ok("mcast-grh");
	CHECK("mcast-sendonly", received(&only, &wc, A_WHILE) == 0);
	CHECK("mcast-sendonly", rdma_post_recv(second.id, NULL, second.memory, sizeof second.memory, second.mr) == 0);
	send_to("mcast-sendonly", &only, only_ah, qkey, "one way");
	CHECK("mcast-sendonly", received(&second, &wc, LONG) == 1 && !strcmp(second.memory + GRH, "one way"));
	ok("mcast-sendonly");

	/* Who has left receives nothing; the others do. */
	CHECK("mcast-leave", rdma_leave_multicast(second.id, group(1)) == 0);
	CHECK("mcast-leave", rdma_post_recv(second.id, NULL, second.memory, sizeof second.memory, second.mr) == 0);
	CHECK("mcast-leave", rdma_post_recv(first.id, NULL, first.memory, sizeof first.memory, first.mr) == 0);
	send_to("mcast-leave", &only, only_ah, qkey, "once more");
	CHECK("mcast-leave", received(&first, &wc, LONG) == 1);
	CHECK("mcast-leave", received(&second, &wc, A_WHILE) == 0);
	FAILS("mcast-leave-unknown", rdma_leave_multicast(second.id, group(1)), EADDRNOTAVAIL);
	FAILS("mcast-leave-unknown", rdma_leave_multicast(first.id, group(2)), EADDRNOTAVAIL);
	CHECK("mcast-leave", rdma_leave_multicast(only.id, group(1)) == 0);
	CHECK("mcast-leave", ibv_destroy_ah(ah) == 0 && ibv_destroy_ah(only_ah) == 0);
	ok("mcast-leave");
	ok("mcast-leave-unknown");
	/* The first is still a member. */
	gone("mcast-destroy", &first);
	gone("mcast-destroy", &second);
	gone("mcast-destroy", &only);
	ok("mcast-destroy");
}

static volatile int has_left;
static pid_t leaver;

static void *leave(void *with)
{
	struct member *member = with;

	leaver = gettid();
	CHECK("mcast-leave-waits", rdma_leave_multicast(member->id, group(1)) == 0);
	has_left = 1;
	return NULL;
}

static void leaving_waits(void)
{
	struct member member = { 0 };
	struct rdma_cm_event *event;
	pthread_t waiting;

	bound("mcast-leave-waits", &member);
	CHECK("mcast-leave-waits", rdma_join_multicast(member.id, group(1), NULL) == 0);
	event = event_of("mcast-leave-waits", member.channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	waiting = thread("mcast-leave-waits", leave, &member);
	usleep(A_WHILE * 1000);
	CHECK("mcast-leave-waits", !has_left);
	CHECK("mcast-leave-waits", rdma_ack_cm_event(event) == 0);
	pthread_join(waiting, NULL);
	CHECK("mcast-leave-waits", has_left);
	/* An event that was not got is not waited for. */
	CHECK("mcast-leave-waits", rdma_join_multicast(member.id, group(1), NULL) == 0);
	CHECK("mcast-leave-waits", readable(member.channel->fd, LONG));
	CHECK("mcast-leave-waits", rdma_leave_multicast(member.id, group(1)) == 0);
	gone("mcast-leave-waits", &member);
	ok("mcast-leave-waits");
}

/* Two memberships of one identifier in one group are two. */
static void twice(void)
{
	struct member member = { 0 };
	int first, second;
	struct rdma_cm_event *event;

	equipped("mcast-twice", &member);
	CHECK("mcast-twice", rdma_join_multicast(member.id, group(1), &first) == 0);
	expect("mcast-twice", member.channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK("mcast-twice", rdma_join_multicast(member.id, group(2), &second) == 0);
	event = event_of("mcast-twice", member.channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK("mcast-twice", event->param.ud.private_data == &second && rdma_ack_cm_event(event) == 0);
	CHECK("mcast-twice", rdma_leave_multicast(member.id, group(1)) == 0);
	CHECK("mcast-twice", rdma_leave_multicast(member.id, group(2)) == 0);
	FAILS("mcast-twice", rdma_leave_multicast(member.id, group(1)), EADDRNOTAVAIL);
	gone("mcast-twice", &member);
	ok("mcast-twice");
}

static void refusals(void)
{
	struct rdma_event_channel *channel = new_channel("mcast-einval");
	struct rdma_cm_id *id = new_id("mcast-einval", channel, RDMA_PS_UDP);
	struct rdma_cm_id *listener, *connected;
	struct rdma_cm_join_mc_attr_ex attr = { .addr = group(1) };
	struct sockaddr_storage unknown = { .ss_family = AF_UNIX };
	struct member member = { 0 };

	FAILS("mcast-einval", rdma_join_multicast(id, group(1), NULL), EINVAL);
	listener = new_listener("mcast-einval", channel, RDMA_PS_TCP);
	connected = new_id("mcast-einval", channel, RDMA_PS_TCP);
	resolve("mcast-einval", connected, port_of(listener));
	FAILS("mcast-einval", rdma_join_multicast(connected, group(1), NULL), EINVAL);
	destroy("mcast-einval", connected);
	destroy("mcast-einval", listener);
	destroy("mcast-einval", id);

	bound("mcast-einval", &member);
	FAILS("mcast-einval", rdma_join_multicast(member.id, (struct sockaddr *)&unknown, NULL), EINVAL);
	FAILS("mcast-einval", rdma_leave_multicast(member.id, (struct sockaddr *)&unknown), EINVAL);
	ok("mcast-einval");
	FAILS("mcast-einval-mask", rdma_join_multicast_ex(member.id, &attr, NULL), EINVAL);
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
	FAILS("mcast-einval-mask", rdma_join_multicast_ex(member.id, &attr, NULL), EINVAL);
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	FAILS("mcast-einval-mask", rdma_join_multicast_ex(member.id, &attr, NULL), EINVAL);
	attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_ADDRESS;
	attr.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	FAILS("mcast-einval-mask", rdma_join_multicast_ex(member.id, &attr, NULL), EINVAL);
	ok("mcast-einval-mask");
	attr.join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER;
	attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_RESERVED;
	FAILS("mcast-enotsup", rdma_join_multicast_ex(member.id, &attr, NULL), EOPNOTSUPP);
	ok("mcast-enotsup");
	gone("mcast-einval", &member);
	rdma_destroy_event_channel(channel);
}

static void synchronous(void)
{
	struct rdma_cm_id *id = new_id("mcast-sync", NULL, RDMA_PS_UDP);

	CHECK("mcast-sync", rdma_resolve_addr(id, address(0), group(1), 2000) == 0);
	new_qp("mcast-sync", id);
	CHECK("mcast-sync", rdma_join_multicast(id, group(1), id) == 0);
	CHECK("mcast-sync", id->event && id->event->event == RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK("mcast-sync", id->event->param.ud.private_data == id);
	destroy("mcast-sync", id);
	ok("mcast-sync");
}

int main(int argc, char **argv)
{
	start(argc, argv);
	PART(refusals());
	PART(members());
	PART(leaving_waits());
	PART(twice());
	PART(synchronous());
	return 0;
}
