-- The health of an object of any of Concerto's kinds, for Argo CD: one script for all of them, as all have the conditions
-- Ready and Stalled. Argo CD runs it without Lua's string library.

-- Ready=False, and yet as it should be
local fine = {
  Warmup = "a node that has just come counts by a first guess until it is measured",
  Expired = "a reservation has ended when its ttlSeconds said",
}
-- Ready=False until something comes that is on its way
local waiting = {
  PodNotFound = "the pod of a binding may be created later",
  PodNotScheduled = "the pod of a binding is on no node yet",
  NotApplied = "the node's agent is about to answer",
  Prepared = "the node's agent waits for the pod's containers",
  NoCapacity = "room for a reservation comes when pods end",
  NodeNotFound = "the node of a reservation may join later",
}

local function say(status, message)
  return { status = status, message = message }
end

local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end
local ready, stalled = conditions.Ready, conditions.Stalled

if ready == nil and (obj.kind == "NodeCapacity" or obj.kind == "NodeCPUTopology" or obj.kind == "SubspaceSnapshot") then
  return say("Progressing", "The agent of the node has not looked at it yet: is there a node of that name?")
end
if ready == nil then
  return say("Progressing", "Concerto has not looked at it yet: is its operator running?")
end
if status.observedGeneration ~= nil and status.observedGeneration < (obj.metadata.generation or 0) then
  return say("Progressing", "Concerto has not looked at the latest edit yet.")
end
if ready.status ~= "True" and fine[ready.reason] == nil then
  return say(waiting[ready.reason] ~= nil and "Progressing" or "Degraded", ready.message)
end
if stalled ~= nil and stalled.status == "True" then
  return say("Degraded", stalled.message)
end
-- of a SchedulingProfile: it places pods, but not by the load that it should
local provider = conditions.ProviderReady
if provider ~= nil and provider.status == "False" then
  return say("Degraded", provider.message)
end
return say("Healthy", ready.message)
