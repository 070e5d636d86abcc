"""One process and nn.DataParallel over whatever devices there are: no process group at all."""
import torch

model = torch.nn.DataParallel(torch.nn.Linear(10, 5))
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(30, 10, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
print("finished rank=0 world=1", flush=True)
