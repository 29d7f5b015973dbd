-- Doorbell: ringing an attached agent once for a todo that is ready.
--
-- A bell is a hint. It may be lost; the queue is the ledger. What may ring: a pending todo of a granted
-- queue that its budget does not shut, not assigned to somebody else, past the sender gate (open rings nobody); at once, then 5 min,
-- 20 min, 1 h, 6 h and 6 h after the last ring, then never again until it is claimed and comes back.
-- take_doorbells() marks what it returns, in one conditional update under the todos' locks, so that of
-- several server processes only one rings; a process calls it only while it holds an open stream of that
-- endpoint. rung_from in queue_marks is a hint where unrung todos begin, two seconds back at least, for
-- creates that commit late; whatever puts an older todo back to pending lowers it; and the look at the
-- oldest, every half minute and on attach, passes it by.
-- Lock order: todos in order of id, then marks.

create or replace function switchboard.last_rings(p_at timestamptz) returns timestamptz[]
language sql immutable set search_path = switchboard, pg_temp
as $$
    select array[p_at - interval '5 minutes', p_at - interval '20 minutes', p_at - interval '1 hour', p_at - interval '6 hours', p_at - interval '6 hours']
$$;
comment on function switchboard.last_rings(timestamptz) is
'When a todo that has rung n times must have rung last, at the latest, to ring again at p_at: the element n; after the sixth ring there is none.';

create or replace function switchboard.may_ring(p_todo switchboard.todos, p_at timestamptz) returns boolean
language sql immutable set search_path = switchboard, pg_temp
as $$
    select p_todo.state = 'pending' and p_todo.trust_mode <> 'open'
       and coalesce(p_todo.last_ringed_at <= (last_rings(p_at))[greatest(p_todo.ring_attempts, 1)], p_todo.last_ringed_at is null)
$$;
comment on function switchboard.may_ring(switchboard.todos, timestamptz) is
'Whether a doorbell may ring for the todo at p_at: pending, past the sender gate (open rings nobody), and its next ring due: at once, then after 5 min, 20 min, 1 h, 6 h, 6 h, then never.';

create or replace function switchboard.open_queues(p_endpoint_id uuid, p_queues text[], p_at timestamptz) returns text[]
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_shut text[] := deferred_of(p_endpoint_id, p_queues, p_at);
begin
    return case when v_shut = '{}' then p_queues else array(select q from unnest(p_queues) q where q <> all (v_shut)) end;
end $$;
comment on function switchboard.open_queues(uuid, text[], timestamptz) is 'Those of p_queues that no budget shuts at p_at: nobody is rung for what cannot be claimed.';

create or replace function switchboard.pending_doorbell_todos(p_endpoint_id text, p_queues text[] default null)
returns setof switchboard.todo
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_now      timestamptz := clock();
    v_endpoint endpoints;
    v_queue    text;
begin
    select * into v_endpoint from endpoints e where e.id = scope(p_endpoint_id, 'list_todos');
    if not found or not is_active(v_endpoint.revoked_at, v_endpoint.expires_at, v_now) then
        return;
    end if;
    foreach v_queue in array coalesce(p_queues, '{}') loop
        perform check_queue(v_queue, v_endpoint.queues);
    end loop;
    return query
        select s.* from ringing(v_endpoint, open_queues(v_endpoint.id, coalesce(p_queues, v_endpoint.queues), v_now), v_now, 1000) t cross join lateral show(t) s;
end $$;
comment on function switchboard.pending_doorbell_todos(text, text[]) is
'The pending todos of the endpoint that may ring now, oldest first, of the oldest 1,000 (100 at least of each queue); none for an endpoint that is not active. p_queues: NULL: all granted. Marks nothing. Errors: forbidden, invalid_argument. Reads todos.';

create or replace function switchboard.ringing(
    p_endpoint switchboard.endpoints, p_queues text[], p_at timestamptz, p_limit integer, p_attach boolean default false)
returns setof switchboard.todos
language sql stable set search_path = switchboard, pg_temp
as $$
    -- each queue's oldest past the gate by themselves: neither open ones, nor another queue, nor what is assigned to others hides them
    with c as materialized (select last_rings(p_at) as cuts)
    select r.* from c, (select distinct unnest(p_queues)) q (queue) cross join lateral (
        (select h.* from (
             select * from todos t
             where t.endpoint_id = p_endpoint.id and t.assignee is null and t.queue = q.queue and t.state = 'pending' and t.trust_mode <> 'open'
             order by t.created_at, t.id limit greatest(100, 1000 / greatest(cardinality(p_queues), 1))) h
         where h.last_ringed_at is null or h.last_ringed_at <= case when p_attach then p_at - interval '30 seconds' else c.cuts[greatest(h.ring_attempts, 1)] end
         order by h.created_at, h.id limit p_limit)
        union all
        (select h.* from (
             select * from todos t
             where t.endpoint_id = p_endpoint.id and t.assignee = 'agent:' || p_endpoint.slug and t.queue = q.queue and t.state = 'pending' and t.trust_mode <> 'open'
             order by t.created_at, t.id limit greatest(100, 1000 / greatest(cardinality(p_queues), 1))) h
         where h.last_ringed_at is null or h.last_ringed_at <= case when p_attach then p_at - interval '30 seconds' else c.cuts[greatest(h.ring_attempts, 1)] end
         order by h.created_at, h.id limit p_limit)) r
    order by r.created_at, r.id limit p_limit
$$;
comment on function switchboard.ringing(switchboard.endpoints, text[], timestamptz, integer, boolean) is
'The first p_limit pending todos of these queues that may ring now, oldest first, of the oldest 1,000 (of several queues 1,000 in all, but 100 of each) that pass the sender gate and are assigned to nobody, and as many that are assigned to the endpoint''s agent; p_attach: for a session that has just attached, whatever did not ring in the last 30 seconds. Reads todos.';

create or replace function switchboard.since(p_endpoint switchboard.endpoints, p_queue text, p_from timestamptz, p_limit integer)
returns table (id uuid, created_at timestamptz, rings boolean)
language sql stable set search_path = switchboard, pg_temp
as $$
    select s.* from (
        (select t.id, t.created_at, t.ring_attempts = 0 and t.last_ringed_at is null and t.trust_mode <> 'open' from todos t
         where t.endpoint_id = p_endpoint.id and t.assignee is null and t.queue = p_queue and t.state = 'pending' and t.created_at >= p_from
         order by t.created_at, t.id limit p_limit)
        union all
        (select t.id, t.created_at, t.ring_attempts = 0 and t.last_ringed_at is null and t.trust_mode <> 'open' from todos t
         where t.endpoint_id = p_endpoint.id and t.assignee = 'agent:' || p_endpoint.slug and t.queue = p_queue and t.state = 'pending' and t.created_at >= p_from
         order by t.created_at, t.id limit p_limit)) s (id, created_at, rings)
    order by s.created_at, s.id limit p_limit
$$;
comment on function switchboard.since(switchboard.endpoints, text, timestamptz, integer) is
'The first p_limit pending todos of the queue, assigned to nobody or to the endpoint''s agent, that were created from p_from on, and whether each is yet to ring. Reads todos.';

create or replace function switchboard.unrung(p_endpoint switchboard.endpoints, p_queue text, p_at timestamptz, p_limit integer) returns uuid[]
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_from timestamptz;
    v_to   timestamptz;
    v_seen record;
begin
    select m.rung_from into v_from from queue_marks m where m.endpoint_id = p_endpoint.id and m.queue = p_queue;
    with seen as materialized (
        select s.* from since(p_endpoint, p_queue, v_from, 2000) s
    ), chosen as (
        select s.id, s.created_at from seen s where s.rings order by s.created_at, s.id limit p_limit
    )
    select array(select c.id from chosen c) as ids, (select max(c.created_at) from chosen c) as chosen_upto,
           count(*) >= 2000 as cut, max(s.created_at) as seen_upto
    into v_seen from seen s;
    -- as far as was rung; if less than p_limit, as far as was looked at; if that was all, to now; but not where a create may yet commit
    v_to := least(p_at - interval '2 seconds',
        case when cardinality(v_seen.ids) = p_limit then v_seen.chosen_upto when v_seen.cut then v_seen.seen_upto end);
    if v_seen.cut or v_to > v_from + interval '2 seconds' then  -- seldom, since claims read these rows
        perform raise_rung_from(p_endpoint.id, p_queue, v_to);
    end if;
    if v_seen.cut and cardinality(v_seen.ids) < p_limit then  -- much that has rung lies before what has just been created
        v_seen.ids := v_seen.ids || array(
            select s.id from since(p_endpoint, p_queue, greatest(v_seen.seen_upto, p_at - interval '5 seconds'), 2000) s
            where s.rings and not s.id = any (v_seen.ids) order by s.created_at, s.id limit p_limit - cardinality(v_seen.ids));
    end if;
    return v_seen.ids;
end $$;
comment on function switchboard.unrung(switchboard.endpoints, text, timestamptz, integer) is
'Up to p_limit todos of the queue that have not rung since they became pending, oldest first, as far as the mark rung_from tells, and those of the last seconds. Reads todos; writes queue_marks.';

create or replace function switchboard.raise_rung_from(p_endpoint_id uuid, p_queue text, p_to timestamptz) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    if current_setting('transaction_isolation') = 'read committed' then  -- above it, a hint is not worth a 40001
        update queue_marks m set rung_from = p_to
        where (m.endpoint_id, m.queue) = (
            select k.endpoint_id, k.queue from queue_marks k
            where k.endpoint_id = p_endpoint_id and k.queue = p_queue and k.rung_from < p_to for no key update skip locked);
    end if;
end $$;
comment on function switchboard.raise_rung_from(uuid, text, timestamptz) is 'Moves the mark of what has rung up to p_to, unless somebody has it locked. Writes queue_marks.';

create or replace function switchboard.take_doorbells(p_endpoint_id text, p_limit integer, p_queue text default null, p_attach boolean default false)
returns setof switchboard.todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_now      timestamptz := clock();
    v_limit    integer     := check_limit(p_limit, 10, 100);
    v_endpoint endpoints;
    v_ids      uuid[];
begin
    select * into v_endpoint from endpoints e where e.id = scope(p_endpoint_id, 'list_todos');
    if not found or not is_active(v_endpoint.revoked_at, v_endpoint.expires_at, v_now) or p_queue <> all (v_endpoint.queues)
            or is_deferred(v_endpoint.id, p_queue, v_now) then
        return;
    end if;
    perform set_config('synchronous_commit', 'off', true);  -- a mark that a crash loses rings once more; until the commit, claims pass these todos by
    v_ids := case when p_queue is null then array(select t.id from ringing(v_endpoint, open_queues(v_endpoint.id, v_endpoint.queues, v_now), v_now, v_limit, coalesce(p_attach, false)) t)
                  else unrung(v_endpoint, p_queue, v_now, v_limit) end;
    return query
    with locked as materialized (  -- again under the lock: another process may have rung it
        select t.endpoint_id, t.id from todos t
        where t.endpoint_id = v_endpoint.id and t.id = any (v_ids) and t.state = 'pending'
          and (may_ring(t, v_now) or p_attach and t.last_ringed_at <= v_now - interval '30 seconds')
        order by t.id for no key update skip locked
    ), rung as (
        update todos t set last_ringed_at = v_now, ring_attempts = case when p_attach then greatest(t.ring_attempts, 1) else t.ring_attempts + 1 end
        from locked l where t.endpoint_id = l.endpoint_id and t.id = l.id
        returning t.*
    )
    select s.* from rung r cross join lateral show(r::todos) s order by s.created_at, s.id;
end $$;
comment on function switchboard.take_doorbells(text, integer, text, boolean) is
'Marks and returns up to p_limit (1..100) todos to ring for now, oldest first; only for a process that holds an open stream of the endpoint. p_queue: what has become ready in this queue, NULL: the oldest whose ring is due in any granted queue; p_attach: for a session that has just attached: whatever rang more than 30 seconds ago, without spending its rings. None for a foreign, unknown or inactive endpoint. Errors: invalid_argument. Writes todos, queue_marks.';

create or replace function switchboard.doorbells(p_endpoint_id text, p_limit integer, p_queue text default null, p_attach boolean default false) returns jsonb
language sql volatile security definer set search_path = switchboard, pg_temp
as $$
    select coalesce(jsonb_agg(jsonb_build_object(
        'content', format('Todo ready on queue %s: %s', t.queue, translate(one_line(t.title, 200), '<>', '‹›')),
        'meta', jsonb_strip_nulls(jsonb_build_object('todo_id', t.id, 'queue', t.queue, 'kind', nullif(translate(one_line(t.kind, 128), '<>"', '‹›'''), '')))) order by t.created_at, t.id), '[]')
    from take_doorbells(p_endpoint_id, p_limit, p_queue, p_attach) t
$$;
comment on function switchboard.doorbells(text, integer, text, boolean) is
'take_doorbells as what is to be pushed: an array of {content, meta: {todo_id, queue, kind}}. Content and kind are one line of text by others, without angle brackets, so that they close no tag; kind goes without quotation marks, too.';

create or replace function switchboard.return_doorbells(p_endpoint_id text, p_ids text[]) returns void
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    with rung as materialized (
        select t.endpoint_id, t.id from todos t
        where t.endpoint_id = scope(p_endpoint_id, 'list_todos') and t.id = any (array(select as_uuid(i) from unnest(p_ids) i)) and t.state = 'pending'
        order by t.id for no key update skip locked
    )
    update todos t set ring_attempts = greatest(t.ring_attempts - 1, 0), last_ringed_at = null
    from rung r where t.endpoint_id = r.endpoint_id and t.id = r.id;
end $$;
comment on function switchboard.return_doorbells(text, text[]) is
'Takes back marks of take_doorbells: no session took the bell, the next one that attaches is to get it. What somebody has locked, to claim it perhaps, keeps its mark. Writes todos.';
